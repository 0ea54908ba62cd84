"""Fused against unfused: whole models over gRPC by `fusewire bench --ab`, and kind of step by kind of step by bench_plan.
Run by ./dev bench ab; figures in bench/results/ab.json.
"""
import argparse
import json
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from harness.daemon import Daemon, client_path

# model -> extra arguments of the load tester
WORK = {
    "minilm": ["--tokens", "8..64", "--output", "sentence_embedding", "--concurrency", "8"],
    "bert-base": ["--tokens", "128", "--output", "sentence_embedding", "--concurrency", "2"],
    "mlp": ["--batch", "256", "--concurrency", "2"],
    "attention": ["--tokens", "256", "--concurrency", "2"],
    "chain": ["--batch", "2048", "--concurrency", "1"],
}
# what bench_plan runs step by step
STEPS = {"minilm 25 tokens": ["25"], "minilm 16 x 32 tokens": ["32x16"], "bert-base 128 tokens": ["--base", "128"]}


def over_grpc(model, seconds):
    with Daemon([f"{ROOT}/config/models/{model}.yaml"]) as daemon:
        done = subprocess.run([client_path(), "bench", "--ab", "--url", daemon.address, "--model", model, "--duration",
                               f"{seconds}s", "--quiet", "--json", "-", *WORK[model]], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{model}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)["levels"][0]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", default=",".join(WORK))
    arguments.add_argument("--seconds", type=float, default=10)
    arguments.add_argument("--out", default=f"{ROOT}/bench/results/ab.json")
    given = arguments.parse_args()
    results = {"date": time.strftime("%Y-%m-%d"), "models": {}, "steps": {}}
    print("unfused / fused, with the 95 % interval\n")
    print("| model | compute_us | bytes moved | latency | calls/s |\n|---|---|---|---|---|")
    for model in given.models.split(","):
        level = over_grpc(model, given.seconds)
        results["models"][model] = level
        cells = [f"{level['ab'][key]['ratio']:.3f} [{level['ab'][key]['low']:.3f}, {level['ab'][key]['high']:.3f}]"
                 for key in ("compute_us", "bytes", "latency", "calls_per_s")]
        print(f"| {model} | {' | '.join(cells)} |", flush=True)
    for name, options in STEPS.items():
        for mode, flag in (("fused", []), ("unfused", ["--off"])):
            text = subprocess.run([f"{ROOT}/build/release/bench/cpu/bench_plan", *flag, *options], capture_output=True,
                                  text=True, check=True).stdout
            results["steps"][f"{name}, {mode}"] = text.splitlines()
            print(f"\n{name}, {mode}\n{text}")
    text = subprocess.run([f"{ROOT}/build/release/bench/cpu/bench_chain"], capture_output=True, text=True, check=True).stdout
    results["chains on 1 GiB"] = text.splitlines()
    print(f"\n{text}")
    with open(given.out, "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
