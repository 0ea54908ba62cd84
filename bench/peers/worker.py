"""One peer in a process of its own: reads a JSON command a line, answers a JSON line. Started by cpu.py.

    worker.py PEER MODEL_FOLDER|bert-base WORK_FOLDER THREADS

PEER: torch | onnxruntime | onnxruntime_optimised | openvino | openvino_bf16. Every peer computes the same network: a
BertModel, mean over the mask, length 1. Commands: {"sequences": [[...]]} sets the input; {"op": "single"} times each
sequence alone, unpadded; {"op": "batches", "size": 16, "sorted": false} times all of them in padded batches;
{"op": "embed"} returns the embeddings.
"""
import json
import os
import sys
import time

import numpy as np


def network(model):
    """The network and its width, in PyTorch."""
    import torch
    from transformers import BertConfig, BertModel

    if model == "bert-base":
        torch.manual_seed(1)
        encoder = BertModel(BertConfig(), add_pooling_layer=False)
    else:
        encoder = BertModel.from_pretrained(model, add_pooling_layer=False)

    class Embedder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder.eval()

        def forward(self, ids, mask):
            hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weight).sum(1) / weight.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1)

    return Embedder()


def exported(model, work):
    """The network as an ONNX file, made once by whoever comes first."""
    import torch

    path = os.path.join(work, f"{os.path.basename(os.path.normpath(model))}.onnx")
    if not os.path.exists(path):
        net = network(model)
        net.encoder.set_attn_implementation("eager")
        sample = (torch.tensor([[101, 7592, 102], [101, 102, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]))
        free = {0: "batch", 1: "seq"}
        temporary = f"{path}.{os.getpid()}"
        with torch.no_grad():
            torch.onnx.export(net, sample, temporary, dynamo=False, opset_version=17, input_names=["ids", "mask"],
                              output_names=["embedding"], dynamic_axes={"ids": free, "mask": free, "embedding": {0: "batch"}})
        os.replace(temporary, path)
    return path


def open_torch(model, work, threads):
    import torch

    torch.set_num_threads(threads)
    net = network(model)

    def run(ids, mask):
        with torch.inference_mode():
            return net(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return run, torch.__version__


def open_onnxruntime(model, work, threads, optimised=False):
    import onnxruntime

    path = exported(model, work)
    if optimised:
        better = path.replace(".onnx", ".optimised.onnx")
        if not os.path.exists(better):
            from onnxruntime.transformers import optimizer

            optimizer.optimize_model(path, model_type="bert", num_heads=12, hidden_size=0,
                                     opt_level=1).save_model_to_file(better)
        path = better
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0], onnxruntime.__version__


def open_openvino(model, work, threads, precision="f32"):
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(exported(model, work)), "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision})
    request = compiled.create_infer_request()
    return lambda ids, mask: request.infer({"ids": ids, "mask": mask})[0].copy(), openvino.__version__


PEERS = {
    "torch": open_torch,
    "onnxruntime": open_onnxruntime,
    "onnxruntime_optimised": lambda *a: open_onnxruntime(*a, optimised=True),
    "openvino": open_openvino,
    "openvino_bf16": lambda *a: open_openvino(*a, precision="bf16"),
}


def pad(sequences):
    longest = max(map(len, sequences))
    ids = np.zeros((len(sequences), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, :len(sequence)], mask[row, :len(sequence)] = sequence, 1
    return ids, mask


def batches(sequences, size, by_length):
    ordered = sorted(sequences, key=len) if by_length else sequences
    return [pad(ordered[i:i + size]) for i in range(0, len(ordered), size)]


def answer(run, sequences, command):
    if command["op"] == "embed":
        return {"rows": np.concatenate([run(*pad([sequence])) for sequence in sequences]).tolist()}
    if command["op"] == "single":
        times = []
        for sequence in sequences:
            ids, mask = pad([sequence])
            start = time.perf_counter()
            run(ids, mask)
            times.append(time.perf_counter() - start)
        return {"ms": [t * 1e3 for t in times]}
    work = batches(sequences, command["size"], command["sorted"])
    start = time.perf_counter()
    for ids, mask in work:
        run(ids, mask)
    return {"per_s": len(sequences) / (time.perf_counter() - start)}


def main():
    peer, model, work, threads = sys.argv[1:5]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the replies
    run, version = PEERS[peer](model, work, int(threads))
    print(json.dumps({"version": version}), file=replies, flush=True)
    sequences = []
    for line in sys.stdin:
        command = json.loads(line)
        if "sequences" in command:
            sequences = command["sequences"]
            reply = {}
        else:
            reply = answer(run, sequences, command)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
