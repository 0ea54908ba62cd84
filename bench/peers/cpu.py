"""MiniLM and a BERT-base shape on this machine's CPU: ours through the daemon over gRPC, the peers in their own processes,
all in one interleaved run over the same real sentences (Debian's fortunes, 8 to 128 tokens, in arrival order).

    p50 ms       one sentence a call, one caller
    arrival /s   ours: concurrency 16, as they come; peers: batches of 16 as they come, padded to the longest
    sorted /s    peers only: sorted by length first, the best that padding can do

Each figure is the median of the rounds. The floor is the steps of the plan alone, from bench_plan, measured in the same
run. A long run can be cut into pieces: --append adds rounds to those of the file, each piece interleaved and warmed up.
Run by ./dev bench cpu.
"""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from harness import fortunes, processor
from harness.daemon import Daemon, client_path

MINILM = os.path.join(ROOT, ".cache", "minilm")
WORK = os.path.join(ROOT, ".cache", "peers")


class Peer:
    def __init__(self, name, model, threads, sequences):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(ROOT, "bench", "peers", "worker.py"), name, model, WORK, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(os.path.join(WORK, f"{name}.log"), "w"), text=True)
        self.version = self.read()["version"]
        self.ask(sequences=sequences)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: see .cache/peers/{self.name}.log")
        return json.loads(line)

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.read()

    def round(self):
        return {"p50_ms": statistics.median(self.ask(op="single")["ms"]),
                "arrival_per_s": self.ask(op="batches", size=16, sorted=False)["per_s"],
                "sorted_per_s": self.ask(op="batches", size=16, sorted=True)["per_s"]}

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Ours:
    def __init__(self, name, daemon, model, ids_file, count):
        self.name, self.daemon, self.model, self.ids_file, self.count = name, daemon, model, ids_file, count
        self.version = "ours"

    def bench(self, concurrency, calls):
        done = subprocess.run(
            [client_path(), "bench", "--url", self.daemon.address, "--model", self.model, "--input-file", self.ids_file,
             "--output", "sentence_embedding", "--concurrency", str(concurrency), "--requests", str(calls), "--warmup", "0.2s",
             "--quiet", "--json", "-"], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        level = json.loads(done.stdout)["levels"][0]
        assert level["failed"] == 0, level
        return level["variants"][0]

    def round(self):
        one, many = self.bench(1, self.count), self.bench(16, 2 * self.count)
        return {"p50_ms": one["latency_us"]["p50"] / 1e3, "arrival_per_s": many["calls_per_s"], "sorted_per_s": None}

    def close(self):
        pass


def floor(lengths, threads, options):
    """Sentences a second that the products alone would allow, for one and for sixteen at a time."""
    out = {}
    for name, batch in (("single", [statistics.median_low(lengths)]), ("batch16", lengths[:16])):
        command = [f"{ROOT}/build/release/bench/cpu/bench_plan", "--threads", str(threads), *options, *map(str, batch)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        out[name] = text.strip().splitlines()
    return out


def measure(runners, rounds):
    """A list of rounds for each runner."""
    for runner in runners if rounds else []:  # warm-up round, not counted
        runner.round()
    results = {runner.name: [] for runner in runners}
    for number in range(rounds):
        for runner in runners:
            results[runner.name].append(runner.round())
        print(f"    round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return results


def medians_of(rounds):
    return {name: {key: statistics.median(r[key] for r in found) if found[0][key] is not None else None
                   for key in found[0]} for name, found in rounds.items() if found}


def table(medians):
    lines = ["| who | p50 ms, one caller | arrival order /s | sorted by length /s |", "|---|---|---|---|"]
    for name, row in medians.items():
        cells = ["" if row[key] is None else f"{row[key]:.2f}" if key == "p50_ms" else f"{row[key]:.1f}"
                 for key in ("p50_ms", "arrival_per_s", "sorted_per_s")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratios(medians, ours, bf16):
    """Against the best peer of the same precision, column by column."""
    peers = {name: row for name, row in medians.items() if not name.startswith("fusewire") and name.endswith("bf16") == bf16}
    if ours not in medians or not peers:
        return {}
    mine = medians[ours]
    return {"arrival_vs_best_sorted": mine["arrival_per_s"] / max(row["sorted_per_s"] for row in peers.values()),
            "arrival_vs_best_arrival": mine["arrival_per_s"] / max(row["arrival_per_s"] for row in peers.values()),
            "p50_vs_best": mine["p50_ms"] / min(row["p50_ms"] for row in peers.values())}


def run_model(model, sequences, threads, rounds, peers, fp32_only, with_floor, before):
    """`before`: this model's part of an earlier piece of the run, or {}."""
    ids_file = os.path.join(WORK, f"{os.path.basename(model)}.ids.jsonl")
    with open(ids_file, "w") as file:
        file.writelines(json.dumps(sequence) + "\n" for sequence in sequences)
    names = {"minilm": "minilm", "bert-base": "bert-base"}[os.path.basename(model)]
    models = [f"{ROOT}/config/models/{names}.yaml"]
    bf16 = processor.has_bf16() and names == "minilm" and not fp32_only
    if bf16:
        models.append(f"{ROOT}/config/models/minilm-bf16.yaml")
    settings = {"device": {"threads": threads}}
    with Daemon(models, settings) as daemon:
        runners = [Ours("fusewire", daemon, names, ids_file, len(sequences))]
        if bf16:
            runners.append(Ours("fusewire_bf16", daemon, "minilm-bf16", ids_file, len(sequences)))
        runners += [Peer(name, model, threads, sequences) for name in peers if bf16 or not name.endswith("bf16")]
        found = measure(runners, rounds)
        versions = {runner.name: runner.version for runner in runners}
        for runner in runners:
            runner.close()
    earlier = before.get("rounds", {})
    found = {name: earlier.get(name, []) + found.get(name, []) for name in [*earlier, *found]}
    medians, lengths = medians_of(found), [len(sequence) for sequence in sequences]
    result = {**before, "sentences": len(sequences), "tokens": sum(lengths), "medians": medians, "rounds": found,
              "versions": {**before.get("versions", {}), **versions},
              "ratios": {"fp32": ratios(medians, "fusewire", False), "bf16": ratios(medians, "fusewire_bf16", True)}}
    if with_floor:
        result["floor"] = floor(lengths, threads, ["--base"] if names == "bert-base" else [])
    return result


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--sentences", type=int, default=256)
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--peers", default="torch,onnxruntime,onnxruntime_optimised,openvino,openvino_bf16")
    arguments.add_argument("--models", default="minilm,bert-base")
    arguments.add_argument("--fp32-only", action="store_true", help="leave bf16 out")
    arguments.add_argument("--no-floor", action="store_true")
    arguments.add_argument("--append", action="store_true", help="add to what is in the file: one more piece of the run")
    arguments.add_argument("--out", default=os.path.join(ROOT, "bench", "results", "cpu.json"))
    given = arguments.parse_args()
    os.makedirs(WORK, exist_ok=True)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{MINILM}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    sentences = [ids for _, ids in fortunes.tokenized(tokenizer, given.sentences, 8, 128)]
    with open("/proc/cpuinfo") as file:
        cpu = re.search(r"model name\s*:\s*(.*)", file.read()).group(1)
    result = {"date": time.strftime("%Y-%m-%d"), "cpu": cpu, "system": platform.platform(), "threads": given.threads,
              "models": {}}
    if given.append:
        with open(given.out) as file:
            before = json.load(file)
        if (before["cpu"], before["threads"]) != (cpu, given.threads):
            raise SystemExit(f"{given.out} is of another machine or thread count")
        result["models"] = before["models"]
    peers = [name for name in given.peers.split(",") if name]
    made_up = [[(7 * i + j) % 30000 + 1 for j in range(128)] for i in range(16)]
    work = {"minilm": (MINILM, sentences), "bert-base": ("bert-base", made_up)}
    for name in given.models.split(","):
        print(f"==> {name}", file=sys.stderr)
        result["models"][name] = run_model(*work[name], given.threads, given.rounds, peers, given.fp32_only,
                                             not given.no_floor, result["models"].get(name, {}))
        print(f"\n{name}: {result['models'][name]['sentences']} sequences, {result['models'][name]['tokens']} tokens\n")
        print(table(result["models"][name]["medians"]))
        print(json.dumps(result["models"][name]["ratios"], indent=1))
    with open(given.out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(f"written: {os.path.relpath(given.out, ROOT)}")


if __name__ == "__main__":
    main()
