"""The trial behind audit_live.sh. Standard library only, so that it runs on any host with a package on it.

One daemon at a time: audit off, on, on, off for each mode, so that a card that warms up or slows down does so for both.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WANTED_LOW, WANTED_HIGH = 0.95, 1.05  # counted over expected
WANTED_CPU = 0.10                     # of one core
WANTED_P50 = 1.02                     # with the audit over without


def program(name, folder):
    for path in (f"{ROOT}/bin/{name}", f"{ROOT}/build/cuda/{folder}/{name}"):
        if os.access(path, os.X_OK):
            return path
    sys.exit(f"audit_live: no {name}: ./dev package cuda, or ./dev build cuda")


def model_file(options):
    """A copy of the model's file with the compute type that is wanted."""
    with open(options.model_file) as file:
        lines = [line for line in file if not line.startswith("compute:")]
    named = next(i for i, line in enumerate(lines) if line.startswith("name:"))
    lines.insert(named + 1, f"compute: {options.compute}\n")
    copy = tempfile.NamedTemporaryFile("w", suffix=".yaml")
    copy.writelines(lines)
    copy.flush()
    return copy


class Daemon:
    def __init__(self, options, mode):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        json.dump({"server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}, "device": {"kind": options.device},
                   "audit": {"mode": mode, "interval": options.interval}, "log": {"level": "info"},
                   "batch": {"max_tokens": options.batch_tokens}}, self.file)
        self.file.flush()
        self.model = model_file(options)
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([program("fusewired", "server"), "--config", self.file.name, self.model.name],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        ready = self.process.stdout.readline()
        found = re.search(r"grpc=(\S+) admin=(\S+)", ready)
        if not found:
            sys.exit(f"audit_live: the daemon did not start:\n{self.text()}")
        self.address, self.admin = found.groups()

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and line[0] != "#"}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        return self.process.returncode


def load(options, daemon, fusion, seconds):
    done = subprocess.run([program("fusewire", "client"), "bench", options.model, "--url", daemon.address, "--fusion", fusion,
                           "--tokens", str(options.tokens), "--concurrency", str(options.concurrency), "--warmup", "2s",
                           "--duration", f"{seconds}s", "--output", "sentence_embedding", "--quiet", "--json", "-"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"audit_live: the load failed ({done.returncode}):\n{done.stderr}\n{daemon.text()}")
    return json.loads(done.stdout)["levels"][0]["variants"][0]


def grown(before, after, name, **labels):
    """What all series of that name with those labels have grown by."""
    return sum(value - before.get(key, 0) for key, value in after.items()
               if key.startswith(name + "{") and all(f'{label}="{is_}"' in key for label, is_ in labels.items()))


def calibrated(daemon):
    for _ in range(200):
        now = daemon.metrics()
        if any(key.startswith("fusewire_audit_calibrated{") and value == 1 for key, value in now.items()):
            return True
        if "audit_refused" in daemon.text():
            return False
        signal.sigtimedwait([], 0.1)
    return False


def trial(options, fusion, audit):
    """p50, and what was counted meanwhile."""
    daemon = Daemon(options, "continuous" if audit else "off")
    try:
        if audit and not calibrated(daemon):
            print(f"SKIP: nothing is counted here:\n{daemon.text()}")
            sys.exit(77)
        before = daemon.metrics()
        run = load(options, daemon, fusion, options.seconds)
        after = daemon.metrics()
        found = {"p50_us": run["latency_us"]["p50"], "calls_per_s": run["calls_per_s"]}
        if audit:
            for direction in ("read", "write"):
                measured, expected = (grown(before, after, f"fusewire_audit_{kind}_bytes_total", fusion=fusion,
                                            direction=direction) for kind in ("measured", "expected"))
                found[direction] = {"measured": measured, "expected": expected,
                                    "ratio": measured / expected if expected else None}
            found["batches"] = grown(before, after, "fusewire_audit_batches_total", fusion=fusion)
            found["skipped"] = grown(before, after, "fusewire_audit_unmeasured_batches_total", fusion=fusion)
            found["losses"] = grown(before, after, "fusewire_audit_losses_total")
            # warm-up and start are in it on both sides of the share
            found["cpu"] = grown(before, after, "fusewire_audit_cpu_seconds_total") / (options.seconds + 2)
            found["unexplained"] = [value for key, value in after.items() if "unexplained_ratio" in key]
        return found
    finally:
        if daemon.stop() != 0:
            print(daemon.text())


def within(found, text, good, missed):
    print(f"  {text}{'' if good else '   MISSES WHAT IS WANTED'}")
    if not good:
        missed.append(f"{found}: {text}")


def report(fusion, runs, missed):
    p50 = {on: statistics.mean(run["p50_us"] for run in runs[on]) for on in (False, True)}
    print(f"fusion {fusion}: {runs[False][0]['calls_per_s']:.0f} calls/s without, {runs[True][0]['calls_per_s']:.0f} with")
    for on, run in enumerate(runs[True]):
        for direction in ("read", "write"):
            ratio = run[direction]["ratio"]
            text = (f"run {on + 1}: {direction} {run[direction]['measured'] / 1e9:.1f} GB of "
                    f"{run[direction]['expected'] / 1e9:.1f} expected: " + (f"{ratio:.3f}" if ratio else "nothing"))
            within(fusion, text, ratio is not None and WANTED_LOW <= ratio <= WANTED_HIGH, missed)
        print(f"  run {on + 1}: {run['batches']:.0f} batches counted, {run['skipped']:.0f} not, {run['losses']:.0f} losses, "
              f"unexplained {run['unexplained']}")
        within(fusion, f"run {on + 1}: decoder {100 * run['cpu']:.1f} % of a core", run["cpu"] < WANTED_CPU, missed)
    share = p50[True] / p50[False]
    within(fusion, f"p50 {p50[False]:.1f} us without, {p50[True]:.1f} us with: {share:.3f}", share <= WANTED_P50, missed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--compute", default="bf16", help="fp32, bf16 or fp16")
    parser.add_argument("--tokens", default="512", help="of a request's sequence, or a range A..B")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--batch-tokens", type=int, default=16384,
                        help="batch.max_tokens. Batches of which every step fits into the cache (of the default 2048 tokens, "
                             "say) are known within bounds only")
    parser.add_argument("--interval", type=int, default=200, help="audit.interval, us")
    parser.add_argument("--rounds", type=int, default=2, help="of off and on, for each mode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--model-file", default=f"{ROOT}/config/models/bert-base.yaml")
    parser.add_argument("--json", help="all figures into this file")
    options = parser.parse_args()
    missed, everything = [], {}
    for fusion in ("on", "off"):
        runs = {False: [], True: []}
        for round_ in range(options.rounds):
            for audit in ((False, True) if round_ % 2 == 0 else (True, False)):
                runs[audit].append(trial(options, fusion, audit))
        report(fusion, runs, missed)
        everything[fusion] = {"off": runs[False], "continuous": runs[True]}
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"options": vars(options), "runs": everything, "missed": missed}, file, indent=1)
    print("all as wanted" if not missed else f"{len(missed)} figures miss what is wanted")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
