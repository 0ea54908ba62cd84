"""The RPC path alone: our daemon with an identity model beside gRPC C++ that sends the message back and beside the floor, a C
program that does the same with nothing but read, memcpy and writev (bare_tcp.c), in one interleaved run. The server runs on
core 0, h2load on core 1 (bare_tcp brings its own load); every answer's bytes are checked before anything is timed, since
h2load does not look at grpc-status.

    calls/s, p50, p99 (us), server CPU us a call, instructions a call (callgrind, the slope between two runs)

CPU a call is the figure to trust: where h2load is the limit, calls/s is h2load's. `floors` is that CPU as a multiple of the
floor's (the median over the repeats, each beside its own floor): what others slowed the machine down by is in both. `noise`
is the share of the machine that neither server nor load used. Run by ./dev bench rpc.
"""
import argparse
import json
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness.daemon import Daemon
from harness.processor import cpu_seconds

PEER = f"{ROOT}/.cache/peers/grpc_cpp/peer"
BARE = f"{ROOT}/.cache/peers/bare_tcp"
TICK = os.sysconf("SC_CLK_TCK")
SIZES = {"4k": 4096, "128k": 131072, "1m": 1 << 20}


TLS = None  # (certificate, key) with --tls


def make_certificate(folder):
    """A certificate for localhost: ECDSA on P-256, as most are today."""
    certificate, key = f"{folder}/server.pem", f"{folder}/server.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True)
    return certificate, key


class OverHttp2:
    """What gRPC servers have in common here; `path` is the method, `request` its message."""

    def check(self, message, size):
        check_answer(self, message, size)

    def load(self, body, streams, calls, log=None):
        return h2load(self, body, streams, calls, log)


class BareTcp:
    name = "bare_tcp"

    def start(self, wrap, size):
        self.size = size
        self.process = subprocess.Popen(wrap + [BARE, "serve", "0", str(size)], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def request(self, size):
        return os.urandom(size)

    def check(self, message, size):
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(message)
            answer = b""
            while len(answer) < size and (piece := connection.recv(size)):
                answer += piece
        if answer != message:
            raise SystemExit("bare_tcp: a wrong answer")

    def load(self, body, streams, calls, log=None):
        done = subprocess.run(["taskset", "-c", "1", BARE, "load", str(self.port), str(self.size), str(streams), str(calls)]
                              + ([log] if log else []), capture_output=True, text=True, check=True)
        return float(done.stdout.split()[0])

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


class GrpcCpp(OverHttp2):
    path = "/peer.Mirror/Reflect"

    def __init__(self, mode):
        self.mode, self.name = mode, f"grpc_cpp_{mode}"

    def start(self, wrap, size):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(wrap + [PEER, self.mode, str(self.port), *(TLS or ())], stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"{self.name} does not listen")

    def request(self, size):
        return pb.chunk(1, os.urandom(size))

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Ours(OverHttp2):
    name, path = "fusewire", "/inference.GRPCInferenceService/ModelInfer"

    def start(self, wrap, size):
        settings = {"device": {"threads": 1}, "server": {"loops": 1}}
        if TLS:
            settings["tls"] = {"certificate": TLS[0], "key": TLS[1]}
        self.daemon = Daemon([f"{ROOT}/config/models/identity.yaml"], settings)
        self.daemon.command = wrap + self.daemon.command
        self.daemon.start()
        self.port, self.process = self.daemon.grpc_port, self.daemon.process

    def request(self, size):
        return pb.infer_request("identity", [pb.tensor("x", "FP32", [size // 4096, 1024])], [os.urandom(size)])

    def stop(self):
        self.daemon.stop()


def machine_cpu():
    with open("/proc/stat") as file:
        fields = [int(x) / TICK for x in file.readline().split()[1:]]
    return sum(fields[:3]) + fields[7]


def check_answer(server, message, size):
    """One call by hand: status OK and the payload's own bytes in the reply."""
    with h2.Connection(server.port, timeout=60, tls=TLS and TLS[0]) as connection:
        connection.read_until(lambda: connection.settings)
        stream = connection.send_headers(h2.grpc_headers(server.path))
        body, sent = h2.grpc_message(message), 0
        while sent < len(body):
            connection.send_data(stream, body[sent:sent + 16384], end_stream=sent + 16384 >= len(body))
            sent += 16384
            if sent % 49152 == 0:
                connection.read_for(0.01)
        connection.wait(stream, 60)
        answer = connection.stream(stream)
        if answer.grpc_status != 0 or message[-size:] not in answer.data:
            raise SystemExit(f"{server.name}: a wrong answer: {answer.grpc_status} {answer.grpc_message}")


def h2load(server, body, streams, calls, log=None, connections=1):
    command = ["taskset", "-c", "1", "h2load", "-t1", "-c", str(connections), "-m", str(streams), "-n", str(calls), "-d", body,
               "-H", "content-type: application/grpc", "-H", "te: trailers"]
    command += ["--log-file", log] if log else []
    command += [f"{'https' if TLS else 'http'}://localhost:{server.port}{server.path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    match = re.search(r"finished in .*?, ([\d.]+) req/s", done.stdout)
    failed = re.search(r"(\d+) failed, (\d+) errored", done.stdout)
    if not match or failed.group(1) != "0" or failed.group(2) != "0":
        raise SystemExit(f"{server.name}: h2load says\n{done.stdout}{done.stderr}")
    return float(match.group(1))


def cpu_model():
    with open("/proc/cpuinfo") as file:
        return re.search(r"model name\s*: (.*)", file.read()).group(1)


def measure(server, size, streams, seconds):
    server.start(["taskset", "-c", "0"], SIZES[size])
    try:
        with tempfile.TemporaryDirectory() as folder:
            message = server.request(SIZES[size])
            server.check(message, SIZES[size])
            body, log = f"{folder}/body", f"{folder}/log"
            with open(body, "wb") as file:
                file.write(b"\0" + struct.pack(">I", len(message)) + message)
            rate = server.load(body, streams, max(200, streams * 20))  # warm-up, and how much to ask for
            calls = max(streams * 10, int(rate * seconds))
            pid, times = server.process.pid, os.times()
            before, machine, started = cpu_seconds(pid), machine_cpu(), time.monotonic()
            rate = server.load(body, streams, calls, log)
            elapsed, spent = time.monotonic() - started, cpu_seconds(pid) - before
            own = os.times()
            client = own.children_user + own.children_system - times.children_user - times.children_system
            with open(log) as file:
                latency = sorted(int(line.split("\t")[2]) for line in file)
            with open(f"/proc/{pid}/status") as file:
                peak = int(re.search(r"VmHWM:\s+(\d+)", file.read()).group(1)) / 1024
    finally:
        server.stop()
    return {"calls_per_s": rate, "cpu_us": spent / calls * 1e6, "p50_us": latency[len(latency) // 2],
            "p99_us": latency[int(len(latency) * 0.99)], "peak_rss_mib": peak,
            "noise": max(0.0, machine_cpu() - machine - spent - client) / elapsed}


def instructions(server, few=500, many=2500):
    """Instructions a call: two runs under callgrind, so that starting and stopping cancel out."""
    totals = []
    for calls in (few, many):
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/callgrind"
            server.start(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"], 4096)
            message = server.request(4096)
            check_answer(server, message, 4096)
            body = f"{folder}/body"
            with open(body, "wb") as file:
                file.write(b"\0" + struct.pack(">I", len(message)) + message)
            h2load(server, body, 8, calls)
            server.stop()
            with open(out) as file:
                totals.append(int(re.search(r"^(?:totals|summary): (\d+)", file.read(), re.M).group(1)))
    return (totals[1] - totals[0]) / (many - few)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--sizes", default="4k,128k,1m")
    arguments.add_argument("--streams", default="1,8,64")
    arguments.add_argument("--cases", help="as 4kx8,1mx8, instead of all sizes with all streams")
    arguments.add_argument("--seconds", type=float, default=2.0)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--modes", default="callback,queue,raw")
    arguments.add_argument("--tls", action="store_true", help="all of it over TLS")
    arguments.add_argument("--no-callgrind", action="store_true")
    arguments.add_argument("--out", default=f"{ROOT}/bench/results/rpc.json")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.tls:
            global TLS
            TLS = make_certificate(folder)
        run(given)


def run(given):
    servers = [Ours()] + [GrpcCpp(mode) for mode in given.modes.split(",") if mode]
    floor = [] if TLS else [BareTcp()]
    rows = []
    print("| bytes | streams | server | calls/s | CPU us/call | floors | p50 us | p99 us | peak RSS MiB | noise |\n" +
          "|---" * 10 + "|")
    cases = [(size, int(streams)) for size in given.sizes.split(",") for streams in given.streams.split(",")]
    if given.cases:
        cases = [(size, int(streams)) for size, streams in (case.split("x") for case in given.cases.split(","))]
    for size, streams in cases:
        found = {server.name: [] for server in floor + servers}
        for _ in range(given.repeats):  # interleaved, so that all see the same state of the machine
            for server in floor + servers:
                found[server.name].append(measure(server, size, streams, given.seconds))
        for name, runs in found.items():
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            if floor:
                row["floors"] = statistics.median(run["cpu_us"] / low["cpu_us"] for run, low in zip(runs, found["bare_tcp"]))
            rows.append({"bytes": SIZES[size], "streams": streams, "server": name, **row})
            print(f"| {size} | {streams} | {name} | {row['calls_per_s']:.0f} | {row['cpu_us']:.1f} | "
                  f"{format(row['floors'], '.2f') if floor else '-'} | {row['p50_us']:.0f} | "
                  f"{row['p99_us']:.0f} | {row['peak_rss_mib']:.0f} | {row['noise'] * 100:.0f}% |", flush=True)
    slopes = {}
    if not given.no_callgrind:
        for server in servers:
            if server.name != "grpc_cpp_callback":  # its threads make the slope uncertain
                slopes[server.name] = instructions(server)
                print(f"{server.name}: {slopes[server.name]:.0f} instructions a 4 KiB call")
    with open(given.out, "w") as file:
        result = {"date": time.strftime("%Y-%m-%d"), "cpu": cpu_model(), "tls": given.tls, "rows": rows,
                  "instructions_4k": slopes}
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
