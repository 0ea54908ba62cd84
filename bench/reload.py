"""bench/reload.py [--seconds N] [--rounds N]: what requests of one model notice while another is loaded again and again.

`still` (an MLP, one row a request, 4 calls in flight, by `fusewire bench`) is measured with nothing else going on and beneath
loads of a 12-layer encoder (synthetic weights, BERT-base's shape, both fusion modes), in turns. Prints one line a run and
the medians. Wants build/release and .cache/venv.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{ROOT}/tests")
import grpc  # noqa: E402
from harness import protobuf_bytes as pb  # noqa: E402
from harness.daemon import Daemon, client_path  # noqa: E402

STILL = """name: still
weights:
  synthetic: {seed: 1, scale: 0.05}
inputs:
  - {name: x, dtype: fp32, shape: [batch, 384]}
graph:
  - mlp: {weights: mlp, hidden: 1536, activation: gelu, norm: pre, residual: true, out: y}
outputs:
  - y
"""


def measure(daemon, seconds):
    """{calls a second, p50, p99} of `still`, in us."""
    command = [client_path(), "bench", "--url", daemon.address, "--model", "still", "--concurrency", "4",
               "--duration", f"{seconds}s", "--warmup", "0.3s", "--quiet", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    run = json.loads(done.stdout)["levels"][0]["variants"][0]
    assert not run.get("failed"), run
    return {"calls_per_s": run["calls_per_s"], "p50": run["latency_us"]["p50"], "p99": run["latency_us"]["p99"]}


class Loader:
    """with Loader(daemon) as loader: bert-base is loaded again and again; loader.n says how often."""

    def __init__(self, daemon):
        self.address, self.stop, self.n = daemon.address, threading.Event(), 0
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with grpc.insecure_channel(self.address) as channel:
            load = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
            while not self.stop.is_set():
                load(pb.chunk(2, "bert-base"), timeout=120)
                self.n += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def say(what, run):
    print(f"{what:<24} {run['calls_per_s']:8.0f} calls/s   p50 {run['p50']:7.0f} us   p99 {run['p99']:7.0f} us", flush=True)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=3)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    runs = {"alone": [], "beneath loads": []}
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/still.yaml", "w") as file:
            file.write(STILL)
        settings = {"server": {"model_control": True}}
        with Daemon([f"{folder}/still.yaml", f"{ROOT}/config/models/bert-base.yaml"], settings) as daemon:
            for _ in range(given.rounds):
                runs["alone"].append(measure(daemon, given.seconds))
                say("alone", runs["alone"][-1])
                with Loader(daemon) as loader:
                    runs["beneath loads"].append(measure(daemon, given.seconds))
                say(f"beneath {loader.n} loads", runs["beneath loads"][-1])
    medians = {name: {key: statistics.median(run[key] for run in some) for key in some[0]}
               for name, some in runs.items()}
    for name, run in medians.items():
        say(f"median {name}", run)
    print(f"p99 beneath loads: {medians['beneath loads']['p99'] / medians['alone']['p99']:.2f} times that alone")


if __name__ == "__main__":
    main()
