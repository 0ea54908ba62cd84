"""bench/traces.py [--rounds N] [--calls N] [--callers N] [--out FILE]: what tracing a call costs the daemon in processor time.

Three daemons: one without traces, one that traces all calls, one that has a collector and traces none. The same inferences (a
small MLP, one row) go to each in turn; processor time is that of all of the daemon's threads, until the last span is exported.
Spans that are dropped end the measurement: what is not recorded costs nothing. Wants build/release and .cache/venv.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{ROOT}/tests")
from harness.clock import wait_for  # noqa: E402
from harness.collector import Collector  # noqa: E402
from harness.daemon import Daemon, client_path  # noqa: E402
from harness.processor import cpu_seconds  # noqa: E402

BLOCK = f"{ROOT}/tests/e2e/models/block.yaml"


def machine():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0]}, {len(names)} processors"


def exported(daemon):
    metrics = daemon.metrics()
    return [int(metrics[f"fusewire_trace_{word}_total"]) for word in ("exported", "failed", "dropped")]


def run(daemon, given, traced):
    """Microseconds of processor time a call."""
    before, told = cpu_seconds(daemon.process.pid), exported(daemon)
    done = subprocess.run([client_path(), "bench", "block", "--url", daemon.address, "--requests", str(given.calls),
                           "--concurrency", str(given.callers), "--warmup", "0", "--quiet"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    if traced:
        wait_for(lambda: sum(exported(daemon)) - sum(told) >= given.calls, what="the spans do not come")
        if exported(daemon)[1:] != told[1:]:
            raise SystemExit("spans were lost or dropped")
    return (cpu_seconds(daemon.process.pid) - before) / given.calls * 1e6


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--calls", type=int, default=40000)
    arguments.add_argument("--callers", type=int, default=16)
    arguments.add_argument("--out")
    given = arguments.parse_args()
    settings = {"server": {"spin": 0}, "device": {"threads": 1}}  # what waits awake would be counted as work
    with Collector() as collector:
        traced = {"endpoint": collector.url, "queue": 2 * given.calls, "delay": 100}
        kinds = {"none": {}, "all": {**traced, "sampling": 1.0}, "not sampled": {**traced, "sampling": 0.0}}
        daemons = {kind: Daemon([BLOCK], {**settings, "trace": trace}).start() for kind, trace in kinds.items()}
        found = {kind: [] for kind in kinds}
        for turn in range(given.rounds + 1):
            for kind in list(kinds)[::1 if turn % 2 else -1]:
                us = run(daemons[kind], given, kind == "all")
                if turn > 0:  # the first round warms up
                    found[kind].append(us)
        for daemon in daemons.values():
            daemon.stop()
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "calls": given.calls, "callers": given.callers,
              "us_a_call": {kind: [round(us, 3) for us in values] for kind, values in found.items()}, "more": {}}
    for kind, values in found.items():
        more = [us - without for us, without in zip(values, found["none"])]
        result["more"][kind] = [round(us, 3) for us in more]
        print(f"{kind:12} {statistics.median(values):7.2f} us a call ({min(values):.2f} to {max(values):.2f}), "
              f"{statistics.median(more):+6.2f} beside none ({min(more):+.2f} to {max(more):+.2f})")
    if given.out:
        with open(given.out, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
