"""soak.py [--seconds N] [--leak BYTES] [--out FILE]: mixed abuse beside honest load against the real daemon (./dev bench soak).

Checked: honest clients get every answer; the law accepted = ok + failed + cancelled + in flight, and that the clients' count,
ModelStatistics and /metrics agree; calls begun = calls ended; memory, files and connections are where they were; RSS is flat.
--leak: every connection loses so many bytes (tests/fault/leak.c), which must be found.
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter

import grpc

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = "harness"

from . import abusers, h2_frames as h2
from . import protobuf_bytes as pb
from .authority import Authority
from .clock import scaled
from .daemon import Daemon, all_closed, daemon_path, sanitized
from .run import ROOT

MODELS = ("honest", "stream", "wrong", "deadline", "cancel", "victim", "churn", "echo")
# RSS under load goes up and down by a dozen MiB with what is in flight. What may not grow is what it falls to: every tenth of the
# time all clients rest, the pools give back what nobody wants any more (base/slab.h: ten seconds), and what is left is compared.
REST_SECONDS = 14
RESTS = range(1, 11)
REST_FROM_SECONDS, BOUND_FROM_SECONDS = 240, 600
# A leak of 64 bytes a connection (80 with malloc's own) would be 450 KiB and more a minute for 6,000 connections, 4 MiB in the
# eight minutes from the second rest to the last; 4 KiB a reload, with 100 a minute, nearly as much. Without a leak two rests
# differ by half a MiB (standard deviation), since each heap's end may keep up to 2 MiB (HEAP_END_BYTES in server/daemon.c): the
# line through the six of the last half is uncertain by 120 KiB a minute, and the difference of two by 700 KiB.
SLOPE_KIB_A_MINUTE = 350
GROWTH_KIB = 2048
KIB, MIB = 1 << 10, 1 << 20
LEAK = os.path.join(os.path.dirname(os.path.dirname(daemon_path())), "tests", "fault", "libfault_leak.so")


class Tally:
    """What clients sent and how it ended, by model."""

    def __init__(self):
        self.lock, self.counts, self.ends = threading.Lock(), Counter(), {}

    def sent(self, model, count=1):
        with self.lock:
            self.counts[model] += count

    def ended(self, model, code):
        with self.lock:
            self.ends.setdefault(model, Counter())[code] += 1


class World:
    def __init__(self, folder, leak=0):
        self.folder, self.tally, self.over = folder, Tally(), threading.Event()
        self.leak, self.at_work, self.resting = leak, Counter(), threading.Event()
        self.latencies, self.problems, self.bouts = [], [], Counter()
        authority = Authority(folder)
        self.certificate = os.path.join(folder, "ca.pem")
        self.pairs = [authority.sign("server", 1001), authority.sign("renewed", 1002)]
        self.unix = os.path.join(folder, "fusewire.sock")
        with open(self.certificate, "rb") as file:
            self.roots = file.read()
        self.install_certificate(0)
        for name in MODELS:
            self.write_model(name)

    def install_certificate(self, which):
        for end, source in zip(("pem", "key"), self.pairs[which]):
            target = os.path.join(self.folder, f"current.{end}")
            with open(source, "rb") as read, open(target + ".new", "wb") as write:
                write.write(read.read())
            os.rename(target + ".new", target)

    def write_model(self, name, broken=False, max_tokens=256):
        path = os.path.join(self.folder, f"{name}.yaml")
        shape, graph = "[batch, 48]", "mlp: {weights: mlp, hidden: 96, activation: gelu, norm: pre, residual: true, out: y}"
        if name == "echo":
            shape, graph, max_tokens = "[batch, seq, 256]", "identity: {out: y}", 4096
            name = "echo\nmax_seqlen: 4096"
        with open(path + ".new", "w") as file:
            file.write(f"name: {name}\nweights: {{synthetic: {{seed: 7, scale: 0.05}}}}\nfusion: ab\n"
                       f"batch: {{max_tokens: {max_tokens}}}\ninputs:\n"
                       f"  - {{name: x, dtype: fp32, shape: {shape}}}\ngraph:\n  - {graph}\noutputs:\n  - y\n")
            if broken:
                file.write("colour: red\n")
        os.rename(path + ".new", path)
        return path

    def start(self):
        environment = {**os.environ, "LD_PRELOAD": LEAK, "FUSEWIRE_LEAK_BYTES": str(self.leak)} if self.leak else None
        self.daemon = Daemon([os.path.join(self.folder, f"{name}.yaml") for name in MODELS], {
            "server": {"unix": self.unix, "model_control": True, "loops": 2},
            "tls": {"certificate": f"{self.folder}/current.pem", "key": f"{self.folder}/current.key"},
            "limits": {"handshake_timeout": 2000, "request_timeout": 5000, "idle_timeout": 60000}},
            environment=environment).start()
        with grpc.insecure_channel(f"unix:{self.unix}") as channel:
            reply = channel.unary_unary(abusers.INFER)(abusers.request("honest"), timeout=60)
            self.tally.sent("honest")
            self.tally.ended("honest", "OK")
        self.answer = next(value for field, value in pb.fields(reply) if field == 6)

    # ---- how actors reach it -----------------------------------------------------------------------------------------------
    def connection(self, rng, **options):
        if rng.random() < 0.5:
            return h2.Connection(self.unix, timeout=120, **options)
        return h2.Connection(self.daemon.grpc_port, tls=self.certificate, timeout=120, **options)

    def channel(self, rng):
        options = [("grpc.use_local_subchannel_pool", 1)]
        if rng.random() < 0.5:
            return grpc.insecure_channel(f"unix:{self.unix}", options=options)
        return grpc.secure_channel(f"localhost:{self.daemon.grpc_port}", grpc.ssl_channel_credentials(self.roots),
                                   options=options)

    def plain_socket(self, rng):
        return h2.Connection(rng.choice([self.unix, self.daemon.grpc_port]), preface=False).socket

    def problem(self, text):
        with self.tally.lock:
            if len(self.problems) < 50:
                self.problems.append(text)

    def act(self, actor, seed, pause):
        rng = random.Random(seed)
        while not self.over.is_set():
            self.at_work[seed] = 1  # before the look at `resting`, as rest() sets that before it looks here
            if self.resting.is_set():
                self.at_work[seed] = 0
                self.over.wait(0.1)
                continue
            try:
                actor(self, rng)
            except Exception:  # a client that could not do what it was to do
                self.problem(f"{actor.__name__}: {traceback.format_exc(limit=-3)}")
            self.bouts[actor.__name__] += 1
            self.at_work[seed] = 0
            self.over.wait(pause)

    # ---- what it costs -----------------------------------------------------------------------------------------------------
    def sample(self):
        return self.daemon.proc("VmRSS") * 1024, len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))

    def rest(self):
        """RSS where nobody wants anything and the same models are loaded as at the start."""
        self.resting.set()
        end = time.monotonic() + 150
        while busy := [actor for actor, at_work in list(self.at_work.items()) if at_work]:
            if time.monotonic() > end:
                self.problem(f"do not rest: {busy}")
                break
            time.sleep(0.05)
        self.settle()
        time.sleep(REST_SECONDS - 2)
        with grpc.insecure_channel(f"unix:{self.unix}") as channel:  # and with it whatever is free goes back
            channel.unary_unary(f"{abusers.SERVICE}RepositoryModelLoad")(pb.chunk(2, "churn"), timeout=120)
        time.sleep(2)
        rss = self.sample()[0]
        self.resting.clear()
        return rss

    def settle(self):
        """The metrics when every connection is closed and nothing is in flight."""
        try:
            return self.daemon.settled(lambda metrics: all_closed(metrics) and metrics["fusewire_message_bytes"] == 0)
        except AssertionError as error:
            self.problem(f"long after the last client left: {error}")
            return self.daemon.metrics()


def finished(metrics, model):
    """Ends of a model by status, over its fusion modes."""
    ends = Counter()
    for name, value in metrics.items():
        if name.startswith("fusewire_infer_finished_total{") and f'model="{model}"' in name and value:
            ends[name.split('code="')[1].split('"')[0]] += int(value)
    return ends


def total(metrics, name, model):
    return int(sum(value for key, value in metrics.items() if key.startswith(name + "{") and f'model="{model}"' in key))


def statistics(world):
    """{model: (success, fail)} as ModelStatistics tells it."""
    with grpc.insecure_channel(f"unix:{world.unix}") as channel:
        reply = channel.unary_unary(abusers.SERVICE + "ModelStatistics")(b"", timeout=60)
    found = {}
    for _, message in pb.fields(reply):
        entry = dict(pb.fields(message))
        inner = dict(pb.fields(entry[6]))
        found[entry[1].decode()] = tuple(dict(pb.fields(inner[field])).get(1, 0) for field in (1, 2))
    return found


def check_law(world, metrics, say):
    """The law by model, and the three counts beside each other."""
    told = statistics(world)
    for model in MODELS:
        accepted, in_flight = total(metrics, "fusewire_infer_accepted_total", model), total(
            metrics, "fusewire_infer_in_flight", model)
        ends, sent, seen = finished(metrics, model), world.tally.counts[model], world.tally.ends.get(model, Counter())
        say(f"{model:9} clients sent {sent or '-':>7}, saw {dict(seen)}; accepted {accepted} = {dict(ends)} + {in_flight} in "
            f"flight; ModelStatistics {told.get(model)}")
        failed = sum(ends.values()) - ends["OK"]
        rules = {"accepted = finished + in flight": accepted == sum(ends.values()) + in_flight,
                 "nothing in flight": in_flight == 0,
                 "ModelStatistics = /metrics": told.get(model) == (ends["OK"], failed), "it was called": accepted > 0}
        if model in ("honest", "stream", "wrong"):
            rules["the clients' count = /metrics"] = seen == ends and sent == accepted
        if model in ("deadline", "churn"):  # what ended before its model was looked up is not the model's
            rules["clients' OK = /metrics"] = seen["OK"] == ends["OK"]
            rules["every call has one answer"] = sum(seen.values()) == sent >= accepted
            rules["no end that clients did not see"] = all(seen[code] >= count for code, count in ends.items())
        if model == "cancel":
            rules["clients' count = accepted"] = sent == accepted == sum(seen.values())
            rules["no answer lost"] = ends["OK"] >= seen["OK"] and not seen["LOST"]
            rules["only OK and CANCELLED"] = set(ends) <= {"OK", "CANCELLED"}
        for rule, holds in rules.items():
            if not holds:
                world.problem(f"{model}: {rule}: broken")
    begun = int(metrics["fusewire_calls_started_total"])
    ended = int(sum(value for name, value in metrics.items() if name.startswith("fusewire_calls_finished_total{")))
    say(f"calls of any method: {begun} begun, {ended} ended")
    if begun != ended:
        world.problem("calls begun are not calls ended")


def slope_a_minute(points):
    """Least squares over (seconds, bytes), in bytes a minute."""
    n = len(points)
    mean_t, mean_b = sum(t for t, _ in points) / n, sum(b for _, b in points) / n
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    return sum((t - mean_t) * (b - mean_b) for t, b in points) / (spread or 1) * 60


def check_memory(world, samples, rests, seconds, say):
    """`rests`: (seconds of abuse, RSS, connections so far)."""
    parts = [sorted(rss / MIB for t, rss, _ in samples if seconds * i <= t * 20 < seconds * (i + 1)) for i in range(20)]
    say("RSS under load by twentieths of the time in MiB, its floor (one tenth of the samples is lower): " + " ".join(
        f"{part[len(part) // 10]:.1f}" for part in parts if part))
    say(f"RSS {samples[0][1] / MIB:.1f} MiB before, highest {max(rss for _, rss, _ in samples) / MIB:.1f}")
    if not rests:
        return
    say("RSS at rest by tenths of the time in MiB: " + " ".join(f"{rss / MIB:.2f}" for _, rss, _ in rests))
    half = [(t, rss, connections) for t, rss, connections in rests if t >= seconds * 0.49]
    slope = slope_a_minute([(t, rss) for t, rss, _ in half]) / KIB
    growth = (rests[-1][1] - rests[1][1]) / KIB
    accepted = half[-1][2] - half[0][2]
    say(f"at rest, over the last half of the time: {slope:+.0f} KiB a minute, {(half[-1][1] - half[0][1]) / accepted:+.1f} bytes "
        f"for each of {accepted:.0f} connections; {growth:+.0f} KiB since the second rest")
    if seconds < BOUND_FROM_SECONDS:
        return
    if slope > SLOPE_KIB_A_MINUTE:
        world.problem(f"RSS is not flat: at most {SLOPE_KIB_A_MINUTE} KiB a minute")
    if growth > GROWTH_KIB:
        world.problem(f"RSS has grown: at most {GROWTH_KIB} KiB")


def run(seconds, say=print, seed=1, leak=0):
    """Problems found, as texts."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder, leak)
        world.start()
        try:
            soak(world, seconds, say, seed)
            world.daemon.stop()
        finally:
            world.daemon.kill()
        return world.problems


def soak(world, seconds, say, seed):
    for path in (world.unix, world.daemon.grpc_port) * 4:  # libuv opens a file of its own with a loop's first connection
        h2.Connection(path, preface=False).close()
    world.settle()
    before, samples, rests = world.sample(), [], []
    samples.append((0.0, *before))
    threads = [threading.Thread(target=world.act, args=(actor, f"{seed}/{actor.__name__}/{i}", pause), daemon=True)
               for actor, count, pause in abusers.ACTORS for i in range(count)]
    for thread in threads:
        thread.start()
    began, due = time.monotonic(), []
    if seconds >= REST_FROM_SECONDS and not sanitized():
        due = [seconds * i / 10 for i in RESTS]
    while ((now := time.monotonic() - began) < seconds or due) and world.daemon.alive():
        samples.append((now, *world.sample()))
        if due and now >= due[0]:
            due.pop(0)
            rss, start = world.rest(), began + now
            rests.append((now, rss, world.daemon.metrics()["fusewire_connections_accepted_total"]))
            began += time.monotonic() - start  # rests are no abuse
        time.sleep(min(0.5, seconds / 40))
    world.over.set()
    for thread in threads:
        thread.join(scaled(150))
    stuck = [thread for thread in threads if thread.is_alive()]
    if stuck or not world.daemon.alive():
        world.problem(f"{len(stuck)} clients are stuck" if stuck else "the daemon is dead")
        return
    metrics = world.settle()
    after, end = world.sample(), time.monotonic() + scaled(10)
    while after[1] > before[1] and time.monotonic() < end:  # the scrape itself has a socket for a moment
        time.sleep(0.1)
        after = world.sample()
    say(f"{seconds} s, {metrics['fusewire_connections_accepted_total']:.0f} connections, bouts: {dict(world.bouts)}")
    check_law(world, metrics, say)
    check_memory(world, samples, rests, seconds, say)
    say(f"files open: {before[1]} before, at most {max(fds for _, _, fds in samples)}, {after[1]} after")
    if after[1] > before[1]:
        world.problem("files stay open")
    served = sorted(world.latencies)
    say(f"{len(served)} honest calls beside it, p50 {served[len(served) // 2] * 1e3:.1f} ms, p99 "
        f"{served[int(len(served) * 0.99)] * 1e3:.1f} ms")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=600)
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    arguments.add_argument("--leak", type=int, default=0, help="bytes lost with every connection: must be found")
    arguments.add_argument("--out", default="", help="also write there what was found")
    given = arguments.parse_args()
    lines = []

    def say(text):
        lines.append(text)
        print(text, flush=True)

    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    leak = f" --leak {given.leak}" if given.leak else ""
    say(f"./dev bench soak --seconds {given.seconds:.0f} --seed {given.seed}{leak}, "
        f"{time.strftime('%F %R', time.gmtime())}, {commit}, "
        f"{os.cpu_count()} cores")
    problems = run(given.seconds, say, given.seed, given.leak)
    for problem in problems:
        say(f"PROBLEM: {problem}")
    say("FAILED" if problems else "nothing wrong")
    if given.out:
        with open(given.out, "w") as file:
            file.write("\n".join(lines) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
