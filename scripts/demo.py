"""The demo behind ./dev demo: embeds real texts through the stock Triton client, checks every embedding against an
independent double-precision implementation, searches with them, then load-tests fused against unfused.

The daemon is not trusted with its own proof: the reference is tests/harness/bert_reference.py, which shares nothing with
it and is itself checked against PyTorch's BertModel in the tests.
"""
import json
import os
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "examples")]
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the reference runs a process a core
import numpy as np
import tritonclient.grpc as triton
from embed import embed, pad
from harness import bert_reference, fortunes
from harness.daemon import Daemon, client_path
from tokenizers import Tokenizer

TEXTS, SHORTEST, LONGEST, BATCH = 240, 3, 256, 16
LEAST_COSINE = {"minilm": 0.99999, "minilm-bf16": 0.999}
QUERIES = ["advice about money", "a computer that does not work", "what to eat for dinner", "growing old"]


def heading(text):
    print(f"\n\033[1m==> {text}\033[0m", flush=True)


def progress(done, total, start=time.monotonic()):
    if sys.stderr.isatty() or done == total or done % 40 == 0:
        end = "\n" if done == total or not sys.stderr.isatty() else "\r"
        print(f"    reference {done}/{total} texts, {time.monotonic() - start:.0f} s", end=end, file=sys.stderr, flush=True)


def embed_alone(address, model, sequences, fusion):
    """One text a request, from four clients at once, so that the daemon may mix them in its batches."""
    rows, batched = [None] * len(sequences), [0] * len(sequences)

    def work(first):
        client = triton.InferenceServerClient(address)
        for i in range(first, len(sequences), 4):
            vectors, cost = embed(client, model, *pad([sequences[i]]), {"fusion": fusion})
            rows[i], batched[i] = vectors[0], cost["batch_requests"]
        client.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(rows), f"largest batch formed: {max(batched)}"


def embed_batches(address, model, sequences, fusion):
    """Requests of 16 texts of unlike length each, padded as clients do; the daemon packs them."""
    client = triton.InferenceServerClient(address)
    rows = [embed(client, model, *pad(sequences[i:i + BATCH]), {"fusion": fusion})[0]
            for i in range(0, len(sequences), BATCH)]
    client.close()
    return np.concatenate(rows), f"{len(rows)} requests of {BATCH}"


def compare(daemon, models, sequences, expected):
    """Every way to ask, against the reference; false when one is not close enough."""
    print(f"    {'model':12} {'fusion':6} {'asked':8} {'texts/s':>8} {'least cosine':>13}  wanted")
    good = True
    for model in models:
        for fusion in ("on", "off"):
            for name, way in (("alone", embed_alone), ("batches", embed_batches)):
                start = time.monotonic()
                found, detail = way(daemon.address, model, sequences, fusion)
                seconds = time.monotonic() - start
                cosine = (found.astype(np.float64) * expected).sum(axis=1) / np.linalg.norm(found.astype(np.float64), axis=1)
                fine = cosine.min() >= LEAST_COSINE[model]
                good &= bool(fine)
                print(f"    {model:12} {fusion:6} {name:8} {len(sequences) / seconds:8.0f} {cosine.min():13.8f}  "
                      f">= {LEAST_COSINE[model]} {'ok' if fine else 'NOT REACHED'}; {detail}", flush=True)
    return good


def search(daemon, tokenizer, texts, vectors):
    client = triton.InferenceServerClient(daemon.address)
    queries, _ = embed(client, "minilm", *pad([tokenizer.encode(query).ids for query in QUERIES]))
    client.close()
    for query, likeness in zip(QUERIES, queries @ vectors.T):
        print(f"    {query}")
        for row in likeness.argsort()[::-1][:2]:
            print(f"      {likeness[row]:.2f}  {texts[row][:110]}")


def load_test(daemon, sequences):
    """The real texts again, in their order, by the load tester."""
    ids = f"{ROOT}/.cache/demo-ids.jsonl"
    with open(ids, "w") as file:
        file.writelines(json.dumps(sequence) + "\n" for sequence in sequences)
    command = [client_path(), "bench", "--ab", "--url", daemon.address, "--model", "minilm", "--input-file", ids,
               "--output", "sentence_embedding", "--concurrency", "4", "--duration", os.environ.get("FW_DEMO_TIME", "8s")]
    print("    " + " ".join(command).replace(ROOT + "/", ""), flush=True)
    return subprocess.run(command).returncode == 0


def main():
    tokenizer = Tokenizer.from_file(f"{ROOT}/.cache/minilm/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    pairs = fortunes.tokenized(tokenizer, TEXTS, SHORTEST, LONGEST)
    texts, sequences = [text for text, _ in pairs], [ids for _, ids in pairs]
    lengths = [len(ids) for ids in sequences]
    heading(f"{len(texts)} texts of Debian's fortunes, {min(lengths)} to {max(lengths)} tokens; reference in double precision")
    expected = bert_reference.cached_embeddings(bert_reference.BertReference(f"{ROOT}/.cache/minilm"), sequences,
                                                f"{ROOT}/.cache", progress)
    models = ["minilm", "minilm-bf16"]
    heading("the daemon, and every embedding of it against the reference")
    with Daemon([f"{ROOT}/config/models/{name}.yaml" for name in models]) as daemon:
        print(f"    serving at {daemon.address}, ready after {daemon.ready_seconds * 1e3:.0f} ms")
        good = compare(daemon, models, sequences, expected)
        heading("nearest texts to a few queries")
        search(daemon, tokenizer, texts, expected)
        heading("load test: fused against unfused, interleaved")
        good &= load_test(daemon, sequences)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
