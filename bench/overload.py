"""An honest client's latency alone, and beside peers that take without giving, in one interleaved run: what a peer
costs others. Run by ./dev bench overload; figures in bench/results/overload.json.

    slow reader       takes a few bytes of large answers now and then, on many connections, and keeps asking for more
    stalled uploader  large messages of which a few bytes come now and then, on many connections
    half-open calls   headers, and no message, 1,000 times on each of two connections
    idle connections  as many as the daemon lets in, less a few

The daemon runs on core 0; the honest client (fusewire bench: 4 callers on one connection, 4 KiB each way) and the peer
(a process of low priority) on core 1. Each round measures all of them, each beside the honest client alone just
before, so that a ratio compares neighbours in time; the figures are medians over the rounds.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness.daemon import Daemon, client_path

INFER = "/inference.GRPCInferenceService/ModelInfer"
LARGE = 1 << 20
CONNECTIONS = 16


def message(size):
    return h2.grpc_message(pb.infer_request("identity", [pb.tensor("x", "FP32", [size // 4096, 1024])], [bytes(size)]))


def connect(port, **options):
    connection = h2.Connection(port, timeout=20, **options)
    connection.read_until(lambda: connection.settings)
    return connection


def slow_reader(port):
    """Sockets with little room, so that the daemon has to keep what is not taken."""
    body, peers = message(LARGE), []
    for _ in range(CONNECTIONS):
        peer = connect(port, settings=[(4, 1 << 30)], window_updates=False)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.send(h2.frame(h2.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        peer.socket.setblocking(False)
        peers.append({"connection": peer, "out": b""})

    def step():
        for peer in peers:
            connection = peer["connection"]
            try:
                connection.socket.recv(1024)
            except BlockingIOError:
                pass
            if not peer["out"]:  # one more of them
                stream = connection.new_stream()
                block = connection.encoder.encode(h2.grpc_headers(INFER))
                frames = [h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block)]
                for at in range(0, len(body), 16384):
                    last = at + 16384 >= len(body)
                    frames.append(h2.frame(h2.DATA, h2.END_STREAM if last else 0, stream, body[at:at + 16384]))
                peer["out"] = b"".join(frames)
            try:  # as much as the daemon reads of it
                peer["out"] = peer["out"][connection.socket.send(peer["out"]):]
            except BlockingIOError:
                pass

    return step


def stalled_uploader(port):
    body, calls = message(LARGE), []
    for _ in range(CONNECTIONS):
        connection = connect(port)
        for _ in range(4):
            stream = connection.send_headers(h2.grpc_headers(INFER))
            connection.send_data(stream, body[:LARGE // 2 // 4], end_stream=False)
            calls.append((connection, stream))

    def step():
        for connection, stream in calls:
            connection.send(h2.frame(h2.DATA, 0, stream, b"x"))

    return step


def half_open(port):
    for _ in range(2):
        connection = connect(port)
        for _ in range(1000):
            connection.send_headers(h2.grpc_headers(INFER))
        kept.append(connection)
    return lambda: None


def idle(port):
    for _ in range(1000):
        kept.append(socket.create_connection(("127.0.0.1", port)))
    for one in kept:
        one.sendall(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
    return lambda: None


kept = []
PEERS = {"slow reader": slow_reader, "stalled uploader": stalled_uploader, "half-open calls": half_open,
         "idle connections": idle}


def be_peer(name, port):
    step = PEERS[name](port)
    end = time.monotonic() + 2
    while time.monotonic() < end:  # what it wants to be held for it is held from the start
        step()
        time.sleep(0.005)
    print("there", flush=True)
    while True:
        step()
        time.sleep(0.02)


def honest(daemon, seconds):
    command = ["taskset", "-c", "1", client_path(), "bench", "--url", daemon.address, "--model", "identity", "--tokens", "1",
               "--concurrency", "4", "--warmup", "100ms", "--duration", f"{int(seconds * 1000)}ms", "--quiet", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the honest client failed:\n{done.stdout}{done.stderr}")
    calls = json.loads(done.stdout)["levels"][0]["variants"][0]
    latency = calls["latency_us"]
    return {"calls_per_s": calls["calls_per_s"], "p50_us": latency["p50"], "p99_us": latency["p99"]}


def beside(daemon, name, seconds):
    command = ["chrt", "-o", "0", "taskset", "-c", "1", "nice", "-n", "19", sys.executable, __file__, "--peer", name]
    peer = subprocess.Popen(command + [str(daemon.grpc_port)], stdout=subprocess.PIPE, text=True)
    try:
        if peer.stdout.readline() != "there\n":
            raise SystemExit(f"{name}: it does not run")
        time.sleep(0.2)
        figures = honest(daemon, seconds)
        held = daemon.metrics()
        figures["held_mib"] = held["fusewire_message_bytes"] / (1 << 20)
        figures["connections"] = held["fusewire_connections"]
    finally:
        peer.kill()
        peer.wait()
    end = time.monotonic() + 20
    while daemon.metrics()["fusewire_connections"] > 0 and time.monotonic() < end:
        time.sleep(0.02)
    return figures


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--seconds", type=float, default=0.5)
    arguments.add_argument("--peers", default=",".join(PEERS))
    arguments.add_argument("--append", action="store_true", help="keep what --out has")
    arguments.add_argument("--out", default=f"{ROOT}/bench/results/overload.json")
    arguments.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.peer:
        be_peer(given.peer[0], int(given.peer[1]))
    daemon = Daemon([f"{ROOT}/config/models/identity.yaml"], {"device": {"threads": 1}, "server": {"loops": 1}})
    daemon.command = ["taskset", "-c", "0", *daemon.command]
    found = {name: [] for name in given.peers.split(",")}
    with daemon:
        honest(daemon, 0.5)
        for _ in range(given.rounds):
            for name, runs in found.items():
                runs.append((honest(daemon, given.seconds), beside(daemon, name, given.seconds)))
    print("| beside | calls/s | p50 us | p99 us | alone: calls/s | p50 us | p99 us | p99 ratio (each round) | held MiB |")
    print("|---" * 9 + "|")
    rows = []
    for name, runs in found.items():
        def median(which, key):
            return statistics.median(run[which][key] for run in runs)

        ratios = [after["p99_us"] / before["p99_us"] for before, after in runs]
        row = {"beside": name, "p99_ratio": statistics.median(ratios), "p99_ratios": ratios,
               "alone": {key: median(0, key) for key in runs[0][0]}, "with": {key: median(1, key) for key in runs[0][1]}}
        rows.append(row)
        cells = [name, *(f"{row[which][key]:.0f}" for which in ("with", "alone") for key in ("calls_per_s", "p50_us", "p99_us")),
                 f"{row['p99_ratio']:.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})", f"{row['with']['held_mib']:.1f}"]
        print(f"| {' | '.join(cells)} |")
    if given.append and os.path.exists(given.out):
        with open(given.out) as file:
            rows = json.load(file)["rows"] + rows
    with open(given.out, "w") as file:
        head = {"date": time.strftime("%Y-%m-%d"), "rounds": given.rounds, "seconds": given.seconds}
        json.dump({**head, "rows": rows}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
