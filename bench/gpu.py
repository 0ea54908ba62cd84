"""gpu.py [--quick] [OUT.jsonl]: runs our GPU benches and the peers', prints one table. Started by bench/gpu.sh.

Every figure is GPU time in microseconds by graph replay, but for the request over loopback. Each row is printed as soon as it
is measured; OUT gets every measured line (default bench/results/gpu-DATE.jsonl). --quick leaves out what torch.compile would
have to compile. Exit code 1 if a program failed; a figure out of reach is a row of the table.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STACKS = ((32, 128), (1, 128), (32, 512))  # sequences, tokens of each: of the BERT-base shape
ROW_MODEL = """name: row
inputs:
  - {name: x, dtype: fp32, shape: [batch, 1024]}
graph:
  - gelu: {out: y}
outputs:
  - y
"""
failures = []


def json_values(text):
    """Every JSON object in a program's output, whatever stands between them."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
            yield value
        except ValueError:
            end = at + 1
        at = text.find("{", end)


def run(command, keep, seconds=60):
    """The program's figures, appended to `keep`; what it complains about, to `failures`."""
    name = os.path.basename(command[1] if "python" in command[0] else command[0])
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, errors="replace")
        output = done.stdout
        if done.returncode:
            failures.append(f"{name}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    except subprocess.TimeoutExpired as error:
        output = error.stdout or ""
        output = output.decode(errors="replace") if isinstance(output, bytes) else output
        failures.append(f"{name}: ended after {seconds} s")
    except OSError as error:
        failures.append(f"{name}: {error}")
        return []
    found = [value for value in json_values(output) if isinstance(value, dict)]
    keep.extend(dict(program=name, **value) for value in found)
    return found


class Peers:
    """bench/peers/gpu.py, which keeps its context between sections; none where it cannot start."""

    def __init__(self, keep, quick):
        self.keep = keep
        command = [sys.executable, f"{ROOT}/bench/peers/gpu.py", "--serve", *(["--quick"] if quick else [])]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.host = pick(self.section("host"), peer="host")

    def section(self, name):
        found = []
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        except OSError:
            return found
        for line in self.process.stdout:
            if line.startswith("{"):
                found.append(json.loads(line))
                if "done" in found[-1]:
                    self.keep.extend(dict(program="peers", **value) for value in found[:-1])
                    return found[:-1]
        self.errors.seek(0)
        failures.append(f"peers, {name}: {self.errors.read().strip()[-400:]}")
        return found

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)


def request_over_loopback(keep):
    """One client, 4 KiB in and out, one kernel: p50 of the whole request beside the device's share of it."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/row.yaml", "w") as file:
            file.write(ROW_MODEL)
        with open(f"{folder}/server.yaml", "w") as file:
            json.dump({"server": {"listen": "127.0.0.1:0", "admin": ""}, "device": {"kind": "cuda"}}, file)
        with open(f"{folder}/log", "w") as log:
            daemon = subprocess.Popen([f"{ROOT}/bin/fusewired", "--config", f"{folder}/server.yaml", f"{folder}/row.yaml"],
                                      stdout=log, stderr=subprocess.STDOUT)
        try:
            port, end = None, time.monotonic() + 60
            while not port and time.monotonic() < end and daemon.poll() is None:
                time.sleep(0.05)
                with open(f"{folder}/log") as log:
                    port = re.search(r"ready\b.*grpc=\S*:(\d+)", log.read())
            if not port:
                with open(f"{folder}/log") as log:
                    failures.append("fusewired: " + log.read()[-400:])
                return None
            out = f"{folder}/bench.json"
            done = subprocess.run([f"{ROOT}/bin/fusewire", "bench", "--url", f"127.0.0.1:{port.group(1)}", "--model", "row",
                                   "--concurrency", "1", "--duration", "4", "--json", out],
                                  capture_output=True, text=True, timeout=60)
            if done.returncode:
                failures.append("fusewire bench: " + done.stderr[-400:])
                return None
            with open(out) as file:
                found = json.load(file)["levels"][0]["variants"][0]
        finally:
            daemon.terminate()
            daemon.wait(30)
    server = {name: found["server"][name]["p50"] for name in ("queue_us", "copy_in_us", "compute_us", "copy_out_us", "total_us")}
    device = server["copy_in_us"] + server["compute_us"] + server["copy_out_us"]
    value = dict(work="request", bytes=4096, client_p50_us=found["latency_us"]["p50"], client_p99_us=found["latency_us"]["p99"],
                 device_us=round(device, 2), beyond_device_us=round(found["latency_us"]["p50"] - device, 2), **server)
    keep.append(dict(program="fusewire bench", **value))
    return value


WIDTHS = (36, 9, 9, 6, 9, -22, 8, 8, 4)  # negative, and the first: to the left


def line(*cells):
    print("  ".join(cell.ljust(abs(width)) if width < 0 or i == 0 else cell.rjust(width)
                    for i, (cell, width) in enumerate(zip(cells, WIDTHS))), flush=True)


def row(work, ours, floor, peer, peer_name, ratio, limit, at_least=False):
    """`ratio` is what the issue bounds by `limit`; None where something was not measured."""
    met = "-" if ratio is None else "yes" if (ratio >= limit if at_least else ratio <= limit) else "NO"
    number = lambda value: "-" if value is None else f"{value:,.1f}"
    line(work, number(ours), number(floor), f"{floor / ours:.0%}" if ours and floor else "-", number(peer), peer_name,
         "-" if ratio is None else f"{ratio:.3f}", f"{'>=' if at_least else '<='} {limit:g}", met)


def pick(values, **wanted):
    for value in values:
        if all(value.get(name) == what for name, what in wanted.items()):
            return value
    return {}


def ratio(a, b):
    return a / b if a and b else None


def chain_rows(program, ours, peers):
    fused, peer = pick(ours, work="chain16"), pick(peers, peer="chain")
    row("chain of 16 on 2^25 fp32", fused.get("us"), fused.get("floor_us"), peer.get("compiled_us"), "torch.compile",
        ratio(fused.get("us"), fused.get("copy_us")), 1.02)
    words = ("--chain", "16", "--dtype", "fp32", "--hidden", "1024", "32768")
    plan, off = (pick(program("bench_plan", *mode, *words), bench="plan") for mode in ((), ("--off",)))
    row("  unfused plan (16 kernels) / fused plan", off.get("us"), None, peer.get("separate_us"), "16 kernels",
        ratio(off.get("us"), plan.get("us")), 15, at_least=True)


def norm_rows(ours, peers):
    for work, name, limit in (("layer_norm", "LayerNorm", 1.08), ("add_layer_norm", "add+LayerNorm", 1.10)):
        for rows, cols in ((16384, 4096), (8192, 8192), (65536, 768)):
            found = pick(ours, work=work, rows=rows, cols=cols, dtype="bf16")
            peer = pick(peers, peer="norm", rows=rows, cols=cols)
            best = peer.get(f"{work}_compiled_us") or peer.get(f"{work}_eager_us")
            row(f"{name} bf16 {rows}x{cols}", found.get("us"), found.get("floor_us"), best,
                "torch.compile" if f"{work}_compiled_us" in peer else "PyTorch eager",
                ratio(found.get("us"), found.get("floor_us")), limit)


def linear_rows(ours, peers):
    for m, k, n in ((16384, 768, 3072), (16384, 1024, 4096), (8192, 4096, 16384)):
        found, peer = pick(ours, work="linear", m=m, k=k, n=n), pick(peers, peer="linear", m=m, k=k, n=n)
        tile = found.get(f"tile{found.get('chosen')}", {})
        us, product, alone = tile.get("bias_erf_us"), found.get("product_us"), tile.get("bias_erf_alone_us")
        row(f"Linear+bias+erf {m}x{k}->{n}", us, product, product, "cuBLASLt, product only", ratio(us, product), 1.10)
        row("  each alone, at its own clock", alone, None, found.get("product_alone_us"), "cuBLASLt, product only",
            ratio(alone, found.get("product_alone_us")), 1.10)
        row("  and a kernel for bias and gelu", us, None, found.get("lt_bias_then_erf_us"), "cuBLASLt + gelu kernel",
            ratio(us, found.get("lt_bias_then_erf_us")), 1.0)
        row("  and PyTorch's gelu", alone, None, peer.get("eager_us"), "PyTorch eager", ratio(alone, peer.get("eager_us")), 1.0)


def attention_rows(ours, peers):
    for b, h, s, d, causal in ((32, 12, 512, 64, False), (8, 16, 2048, 128, False), (2, 16, 8192, 128, True)):
        shape = dict(b=b, h=h, s=s, d=d)
        found = pick(ours, work="attention", causal=int(causal), **shape)
        peer = pick(peers, peer="attention", causal=causal, **shape)
        flop = 4.0 * b * h * s * s * d * (0.5 if causal else 1)
        row(f"attention d{d} s{s} b{b} h{h}{' causal' if causal else ''}", found.get("us"), flop / 742e6, peer.get("cudnn_us"),
            "cuDNN", ratio(peer.get("cudnn_us"), found.get("us")), 0.75, at_least=True)


def encoder_rows(program, peers):
    for b, s in STACKS:
        found = pick(program("bench_plan", f"{b}x{s}"), bench="plan")
        peer = pick(peers.section(f"encoder {b}x{s}"), peer="encoder")
        row(f"BERT-base 12 layers bf16 b{b} s{s}", found.get("us"), found.get("floor_us"), peer.get("compiled_us"),
            "torch.compile, graph", ratio(found.get("us"), peer.get("compiled_us")), 1.0)
        if (b, s) == (32, 128):
            off = pick(program("bench_plan", "--off", f"{b}x{s}"), bench="plan").get("us")
            row("  unfused / fused", off, None, peer.get("eager_us"), "PyTorch eager, graph", ratio(off, found.get("us")),
                1.0, at_least=True)


def request_row(found):
    found = found or {}
    row("4 KiB request, p50 at the client", found.get("client_p50_us"), found.get("device_us"), None, "",
        found.get("beyond_device_us"), 60)


def save(keep, path):
    """After every section, so that a run that is cut short leaves what it measured."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as file:
        for value in keep:
            file.write(json.dumps(value) + "\n")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--quick", action="store_true", help="leave out what torch.compile would compile")
    arguments.add_argument("out", nargs="?", default=f"{ROOT}/bench/results/gpu-{datetime.date.today()}.jsonl")
    given = arguments.parse_args()
    os.environ.setdefault("FUSEWIRE_JIT_CACHE", tempfile.mkdtemp(prefix="fusewire-cubins-"))
    keep = []
    program = lambda name, *words: run([f"{ROOT}/libexec/cuda_{name}", *words], keep)
    peers = Peers(keep, given.quick)
    print(f"{peers.host.get('device', 'GPU')}, {datetime.date.today()}, torch {peers.host.get('torch', 'not run')}\n"
          "floor: bytes at a copy's rate, cuBLASLt's product, or arithmetic at 742 TFLOP/s; figure: what `reach` bounds")
    line("work", "ours us", "floor us", "share", "peer us", "peer", "figure", "reach", "met")
    linear_rows(program("bench_gemm", "3"), peers.section("linear"))
    save(keep, given.out)
    encoder_rows(program, peers)
    save(keep, given.out)
    request_row(request_over_loopback(keep))
    rows = program("bench_row")
    chain_rows(program, rows, peers.section("chain"))
    norm_rows(rows, peers.section("norm"))
    save(keep, given.out)
    attention_rows(program("bench_attention"), peers.section("attention"))
    save(keep, given.out)
    peers.close()
    for failure in failures:
        print("FAILED", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
