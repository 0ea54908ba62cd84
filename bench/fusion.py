"""fusion.py EXPERIMENT [--from LINES.jsonl] : fused beside separate, measured beside predicted; table, CSV and SVG.

EXPERIMENT is chain, reductions, epilogue or attention (bench/fusion.h says what each is). Runs the CPU's program, or reads what
libexec/cuda_bench_fusion of the package printed on a host with a GPU. What is drawn of a recording that
tests/unit/graph/test_recorded.c knows (those of bench/results) is what the cost model predicts today, not on the day
of the recording.
Writes bench/results/fusion-EXPERIMENT-DEVICE.csv and .svg.
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from plot import line_plot

# what the program calls it -> (title, name of x, its meaning)
PARTS = {
    "chain": [("chain", "k steps v*1.001+0.001 on 2^25 floats", "k")],
    "reductions": [("layer_norm", "LayerNorm of 2^25 floats: one pass, or statistics and the rest", "cols"),
                   ("gelu_sum", "sum(gelu(x)) of 2^25 floats", "cols")],
    "epilogue": [("epilogue", "gelu(x W + b)", "k")],
    "attention": [("attention", "attention, one sequence", "s")],
}
X_NAMES = {"k": {"chain": "steps", "epilogue": "K"}, "cols": "floats in a row", "s": "tokens of the sequence"}
TURNS_AT = 1.05  # a gain below this is none


def measure(experiment, seconds):
    program = f"{ROOT}/build/release/bench/cpu/bench_fusion"
    done = subprocess.run([program, "--seconds", str(seconds), experiment], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{program}: {done.stderr}")
    return done.stdout


def predict_again(path, lines):
    """Today's predictions in the place of the recording's; False: nobody knows how to predict this recording."""
    program = f"{ROOT}/build/release/tests/graph_test_recorded"
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/predictions"
        subprocess.run([program], cwd=ROOT, env={**os.environ, "FUSEWIRE_PREDICTIONS": out},
                       stdout=subprocess.DEVNULL, check=True)
        with open(out) as file:
            found = [json.loads(line) for line in file]
    found = [line for line in found if line.pop("recording") == os.path.basename(path)]
    predicted = {key_of(line): line for line in found}
    for line in lines:
        if found and "experiment" in line:
            line.update(predicted[key_of(line)])
    return bool(found)


def key_of(line):
    return line["experiment"], next(int(line[x]) for x in ("cols", "s", "k") if x in line)


def rows_of(lines, part, x):
    """One row a point: times in us, rates in GB/s of the bytes that the kernels cannot do without."""
    rows = []
    for line in lines:
        if line.get("experiment") != part:
            continue
        row = {x: int(line[x]), "fused_us": line["fused_us"], "separate_us": line["separate_us"],
               "speed_up": line["separate_us"] / line["fused_us"],
               "fused_gbps": line["fused_bytes"] / line["fused_us"] / 1e3,
               "separate_gbps": line["separate_bytes"] / line["separate_us"] / 1e3,
               "fused_predicted_us": line["fused_predicted_us"], "separate_predicted_us": line["separate_predicted_us"],
               "predicted_speed_up": line["separate_predicted_us"] / line["fused_predicted_us"],
               "fused_kernels": line["fused_kernels"], "separate_kernels": line["separate_kernels"]}
        if line["copy_us"]:
            row["share_of_copy"] = line["copy_us"] / line["fused_us"]
        rows.append(row)
    return rows


def cell(value):
    """Four digits, and all of those before the point."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def print_table(title, device, rows):
    print(f"\n{title}; {device}\n")
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(cell(v) for v in row.values()) + " |")


def turning_point(rows, x, key):
    """Where the gain falls below TURNS_AT, in words: the least x from which on it stays there."""
    last = max((row[x] for row in rows if row[key] >= TURNS_AT), default=None)
    later = [row[x] for row in rows if last is None or row[x] > last]
    return f"from {x} = {min(later)} on" if later else f"at no {x} up to {rows[-1][x]}"


def render(experiment, text, out, path=None):
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    again = path is not None and predict_again(path, lines)
    head = next(line for line in lines if "backend" in line)
    device = head["device"]
    for part, title, x in PARTS[experiment]:
        rows = rows_of(lines, part, x)
        if not rows:
            raise SystemExit(f"there is no line of {part}")
        print_table(title, device, rows)
        print("\npredicted by today's model" if again and head["backend"] == "cuda" else
              f"\nrates by which it was predicted: copy {head['copy_gbps']:g} GB/s, cache {head['cache_gbps']:g} GB/s, "
              f"element-wise {head['vector_gflops']:g} GFLOP/s, products {head['product_gflops']:g} GFLOP/s")
        if x in ("s", "cols") or part == "epilogue":
            print(f"the gain is below {TURNS_AT} {turning_point(rows, x, 'speed_up')}; "
                  f"predicted: {turning_point(rows, x, 'predicted_speed_up')}")
        x_name = X_NAMES[x][part] if isinstance(X_NAMES[x], dict) else X_NAMES[x]
        series = [("fused", "fused_us", False), ("  predicted", "fused_predicted_us", True),
                  ("separate", "separate_us", False), ("  predicted", "separate_predicted_us", True)]
        path = f"{out}/fusion-{part.replace('_', '-')}-{head['backend']}"
        with open(path + ".csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(rows[0])
            writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row.values()] for row in rows)
        with open(path + ".svg", "w") as file:
            file.write(line_plot(title, device, x_name, "us",
                                 [(name, [(row[x], row[key]) for row in rows], dashed) for name, key, dashed in series]))
        print(f"{os.path.relpath(path, ROOT)}.csv, .svg")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("experiment", choices=PARTS)
    arguments.add_argument("--from", dest="lines", help="what a GPU's run printed")
    arguments.add_argument("--seconds", type=float, default=0.5, help="that each point may take (0.5)")
    arguments.add_argument("--out", default=f"{ROOT}/bench/results")
    given = arguments.parse_args()
    if given.lines:
        with open(given.lines) as file:
            text = file.read()
    else:
        text = measure(given.experiment, given.seconds)
    render(given.experiment, text, given.out, given.lines)


if __name__ == "__main__":
    main()
