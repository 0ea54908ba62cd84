"""What clients do to a daemon, well or badly: each function is one bout of one kind of client, for tests/harness/soak.py.

`world` has the daemon, its two transports (TLS on the port, clear text on the Unix socket), a seeded generator for each
actor and the tallies. Whoever can know what the daemon counted, tells it: each such kind calls a model of its own, so that
the sums can be compared exactly.
"""
import os
import signal
import socket
import ssl
import struct
import time

import grpc

from . import h2_frames as h2
from . import protobuf_bytes as pb

SERVICE = "/inference.GRPCInferenceService/"
INFER, STREAM, LIVE = SERVICE + "ModelInfer", SERVICE + "ModelStreamInfer", SERVICE + "ServerLive"
Code = grpc.StatusCode


def request(model, rows=1, request_id=""):
    return pb.infer_request(model, [pb.tensor("x", "FP32", [rows, 48])], [world_rows(rows)], request_id=request_id)


def world_rows(rows):
    return struct.pack("<48f", *[0.1 * i - 2 for i in range(48)]) * rows


def number(value):
    return struct.pack(">I", value)


def drop(connection, hard):
    """Close; `hard`: by a reset in place of an orderly end."""
    if hard:
        try:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
    connection.close()


def settled(connection):
    """Every frame sent so far has been read by the daemon: it answers a PING in its turn."""
    before = sum(ack for ack, _ in connection.pings)
    connection.send(h2.frame(h2.PING, 0, 0, b"in order"))
    return connection.read_until(lambda: sum(ack for ack, _ in connection.pings) > before, 60)


# ---- honest clients: every answer is known beforehand ------------------------------------------------------------------
def honest(world, rng):
    with world.channel(rng) as channel:
        call = channel.unary_unary(INFER)
        for _ in range(30):
            rows = rng.randrange(1, 17)
            message = request("honest", rows)
            began = time.monotonic()
            world.tally.sent("honest")
            try:
                reply = call(message, timeout=120)
                world.latencies.append(time.monotonic() - began)
                world.tally.ended("honest", "OK")
                output = next(value for field, value in pb.fields(reply) if field == 6)
                if output != world.answer * rows:
                    world.problem("an honest client got a wrong answer")
            except grpc.RpcError as error:
                world.tally.ended("honest", error.code().name)
                world.problem(f"an honest client got {error.code().name}: {error.details()}")
            time.sleep(0.005)


def whole_streams(world, rng):
    with world.channel(rng) as channel:
        count = rng.randrange(1, 40)
        world.tally.sent("stream", count)
        answers = list(channel.stream_stream(STREAM)(iter([request("stream")] * count), timeout=120))
        for message in answers:
            world.tally.ended("stream", "UNKNOWN" if 1 in dict(pb.fields(message)) else "OK")
        if len(answers) != count:
            world.problem(f"a stream of {count} requests got {len(answers)} answers")


def wrong_requests(world, rng):
    """Refused by name, each: the model is found, so that it is counted."""
    with world.channel(rng) as channel:
        call = channel.unary_unary(INFER)
        for _ in range(20):
            shape, data = rng.choice([([1, 47], 188), ([1, 48], 191), ([1, 48], 0), ([-1, 48], 192), ([(1 << 63) - 1, 48], 4)])
            world.tally.sent("wrong")
            try:
                call(pb.infer_request("wrong", [pb.tensor("x", "FP32", shape)], [bytes(data)]), timeout=120)
                world.tally.ended("wrong", "OK")
            except grpc.RpcError as error:
                world.tally.ended("wrong", error.code().name)


# ---- deadlines and cancels, by frames: the client counts what the daemon does -------------------------------------------
def deadlines(world, rng):
    """grpc-timeout around the service time, and no clock in the client: each call has exactly one answer of the daemon."""
    with world.connection(rng) as connection:
        for _ in range(10):
            calls = []
            for _ in range(24):
                timeout = f"{int(10 ** rng.uniform(2, 4.7))}u"  # 0.1 to 50 ms
                message = request("deadline", rng.randrange(1, 200))
                calls.append(connection.start_call(INFER, message, [("grpc-timeout", timeout)]))
                world.tally.sent("deadline")
            if not connection.read_until(lambda: all(connection.stream(call).done for call in calls), 120):
                return world.problem("a call with a deadline was not answered")
            for call in calls:
                code = connection.stream(call).grpc_status
                world.tally.ended("deadline", {0: "OK", 4: "DEADLINE_EXCEEDED", 8: "RESOURCE_EXHAUSTED"}.get(code, str(code)))


def cancels(world, rng):
    with world.connection(rng) as connection:
        for _ in range(6):
            calls = [connection.start_call(INFER, request("cancel", rng.randrange(1, 200))) for _ in range(40)]
            world.tally.sent("cancel", len(calls))
            connection.read_for(rng.choice([0, 0, 0.002, 0.01]))
            cancelled = {call for call in calls if rng.random() < 0.8 and not connection.stream(call).done}
            connection.send(b"".join(h2.frame(h2.RST_STREAM, 0, call, number(h2.CANCEL)) for call in cancelled))
            if not settled(connection) or not connection.read_until(
                    lambda: all(connection.stream(call).done for call in calls if call not in cancelled), 120):
                return world.problem(f"a call that nobody cancelled was not answered; GOAWAYs: {connection.goaways}")
            for call in calls:
                answered = connection.stream(call).grpc_status == 0
                world.tally.ended("cancel", "OK" if answered else "CANCELLED" if call in cancelled else "LOST")


# ---- attackers ------------------------------------------------------------------------------------------------------------
def expect_end(world, connection, name):
    if not connection.wait_closed(60):
        world.problem(f"{name}: the connection stays open")


def rapid_reset(world, rng):
    with world.connection(rng) as connection:
        blocks = [connection.encoder.encode(h2.grpc_headers(INFER)) for _ in range(3)]
        whole, frames = rng.random() < 0.5, []
        for i in range(15000):
            stream = connection.new_stream()
            frames += [h2.frame(h2.HEADERS, h2.END_HEADERS, stream, blocks[min(i, 2)]),
                       h2.frame(h2.DATA, h2.END_STREAM, stream, h2.grpc_message(b"")) if whole else b"",
                       h2.frame(h2.RST_STREAM, 0, stream, number(h2.CANCEL))]
        connection.send(b"".join(frames))
        connection.read_until(lambda: connection.goaways, 5)


def floods(world, rng):
    with world.connection(rng) as connection:
        block = connection.encoder.encode(h2.grpc_headers(INFER))
        stream = connection.new_stream()
        open_call = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block)
        value = b"v" * 3900
        bomb = block + b"\x40\x06x-bomb\x7f" + pb.varint(len(value) - 127) + value + b"\xbe" * 3000
        name, data = rng.choice([
            ("PING", h2.frame(h2.PING, 0, 0, bytes(8)) * 3000),
            ("SETTINGS", h2.frame(h2.SETTINGS, 0, 0) * 20000),
            ("WINDOW_UPDATE", h2.frame(h2.WINDOW_UPDATE, 0, 0, number(1)) * 50000),
            ("empty DATA", open_call + h2.frame(h2.DATA, 0, stream) * 5000),
            ("padding", open_call + h2.frame(h2.DATA, h2.PADDED, stream, b"\x05" + bytes(5)) * 5000),
            ("CONTINUATION", h2.frame(h2.HEADERS, 0, stream, block) + h2.frame(h2.CONTINUATION, 0, stream) * 100),
            ("made you reset", b"".join(h2.frame(h2.HEADERS, h2.END_HEADERS, s, block if s == 1 else b"") + h2.frame(
                h2.WINDOW_UPDATE, 0, s, number(0)) for s in range(1, 1201, 2))),
            ("HPACK bomb", b"".join(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, s, bomb) for s in range(1, 101, 2))),
            ("frame size", h2.frame(h2.DATA, 0, 1, b"", 1 << 20)),
        ])
        connection.send(data)
        expect_end(world, connection, name)


def half_open(world, rng):
    """Calls and connections that stop anywhere; most vanish by a reset."""
    probe = world.connection(rng)
    block = probe.encoder.encode(h2.grpc_headers(INFER))
    body = h2.grpc_message(request("victim", 4))
    whole = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block) + h2.frame(
        h2.DATA, h2.END_STREAM, 1, body)
    crowd = [world.plain_socket(rng) for _ in range(30)]
    for one in crowd:
        cut = rng.randrange(len(whole) + 1)
        try:
            one.sendall(whole[:cut])
        except OSError:
            pass
    for _ in range(100):
        stream = probe.new_stream()
        probe.send(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, probe.encoder.encode(h2.grpc_headers(INFER))) + h2.frame(
            h2.DATA, 0, stream, h2.grpc_message(b"x", length=1 << 20)))
    probe.read_for(rng.uniform(0, 1))
    for one in crowd:
        if rng.random() < 0.7:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    drop(probe, rng.random() < 0.5)


def slow_readers(world, rng):
    """Windows of 0, then of a byte at a time: some then take the whole answer, some leave."""
    with world.connection(rng, settings=[(4, 0)], window_updates=False) as connection:
        rows = 64
        data = pb.infer_request("echo", [pb.tensor("x", "FP32", [1, rows, 256])], [bytes(rows * 1024)])
        connection.read_until(lambda: connection.settings, 60)  # until then, windows are of 64 KiB
        calls = [connection.start_call(INFER, data) for _ in range(6)]
        if not connection.read_until(lambda: connection.stream(calls[0]).blocks, 60):
            world.problem("a slow reader was not even begun to be answered")
        for _ in range(100):
            connection.send(h2.frame(h2.WINDOW_UPDATE, 0, calls[0], number(1)))
            connection.read_for(0.002)
        if rng.random() < 0.5:
            connection.send(h2.frame(h2.WINDOW_UPDATE, 0, 0, number(1 << 24)) + b"".join(
                h2.frame(h2.WINDOW_UPDATE, 0, call, number(1 << 20)) for call in calls))
            if not connection.read_until(lambda: all(connection.stream(call).ended for call in calls), 60):
                world.problem("a slow reader that woke did not get its answers")


def malformed(world, rng):
    """Good traffic with bits turned over, pieces left out or told twice; and noise."""
    for _ in range(10):
        with world.connection(rng, preface=False) as connection:
            block = connection.encoder.encode(h2.grpc_headers(INFER))
            frames = [h2.PREFACE, h2.frame(h2.SETTINGS, 0, 0), h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block),
                      h2.frame(h2.DATA, h2.END_STREAM, 1, h2.grpc_message(request("victim", 2))),
                      h2.frame(h2.PING, 0, 0, bytes(8)), h2.frame(h2.RST_STREAM, 0, 1, number(h2.CANCEL))]
            kind = rng.randrange(4)
            if kind == 0:
                rng.shuffle(frames)
            data = bytearray(b"".join(frames))
            if kind == 1:
                for _ in range(rng.randrange(1, 8)):
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            elif kind == 2:
                at = rng.randrange(len(data))
                data[at:at + rng.randrange(1, 40)] = b""
            elif kind == 3:
                data = bytearray(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + rng.randbytes(rng.randrange(1, 2000)))
            connection.send(bytes(data))
            connection.read_until(lambda: connection.goaways, 0.05)


def vanishing(world, rng):
    """Whole requests whose clients are gone before, while or after they are answered; and streams that break off."""
    for _ in range(5):
        connection = world.connection(rng)
        for _ in range(rng.randrange(1, 30)):
            connection.start_call(INFER, request("victim", rng.randrange(1, 200)))
        stream = connection.send_headers(h2.grpc_headers(STREAM))
        for _ in range(rng.randrange(1, 30)):
            connection.send_data(stream, h2.grpc_message(request("victim", 9)), end_stream=False)
        connection.read_for(rng.choice([0, 0.001, 0.01]))
        drop(connection, rng.random() < 0.5)
    with world.channel(rng) as channel:
        for _ in range(3):
            answers = channel.stream_stream(STREAM)(iter([request("victim", 50)] * 30), timeout=rng.choice([0.001, 0.01, 60]))
            try:
                for i, _ in enumerate(answers):
                    if i == 5:
                        answers.cancel()
            except grpc.RpcError:
                pass


def tls_abuse(world, rng):
    """Handshakes that stop, that are none, that break off, that speak something else afterwards."""
    context = ssl.create_default_context(cafile=world.certificate)
    for _ in range(6):
        with socket.create_connection(("127.0.0.1", world.daemon.grpc_port), timeout=10) as raw:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            context.set_alpn_protocols([rng.choice(["h2", "http/1.1"])])
            client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            hello = outgoing.read()
            kind = rng.randrange(4)
            data = {0: hello[:rng.randrange(len(hello))], 1: h2.PREFACE, 2: rng.randbytes(300), 3: hello}[kind]
            try:
                raw.sendall(data)
                if kind == 3:
                    incoming.write(raw.recv(65536)[:rng.randrange(1, 1000)])
                    client.do_handshake()
            except (OSError, ssl.SSLError):
                pass
            if rng.random() < 0.5:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# ---- what operators do ----------------------------------------------------------------------------------------------------
def reload_models(world, rng):
    with world.channel(rng) as channel:
        load, unload = (channel.unary_unary(f"{SERVICE}RepositoryModel{what}") for what in ("Load", "Unload"))
        name, kind = pb.chunk(2, "churn"), rng.randrange(5)
        expected = Code.INVALID_ARGUMENT if kind == 2 else None
        try:
            world.write_model("churn", broken=kind == 2, max_tokens=rng.choice([64, 64, 256, 300]))
            if kind == 0:
                unload(name, timeout=120)
                time.sleep(rng.uniform(0, 0.3))
            if kind == 1:
                world.daemon.signal(signal.SIGHUP)
            load(name, timeout=120)
            if expected:
                world.problem("a broken file was loaded")
        except grpc.RpcError as error:
            if error.code() != expected:
                world.problem(f"load: {error.code().name}: {error.details()}")
        world.write_model("churn")
        if expected:
            load(name, timeout=120)


def call_reloaded(world, rng):
    with world.channel(rng) as channel:
        call = channel.unary_unary(INFER)
        for _ in range(40):
            world.tally.sent("churn")
            try:
                call(request("churn", rng.randrange(1, 17)), timeout=120)
                world.tally.ended("churn", "OK")
            except grpc.RpcError as error:
                world.tally.ended("churn", error.code().name)
                if error.code() != Code.UNAVAILABLE or "does not serve" not in error.details():
                    world.problem(f"a reloaded model: {error.code().name}: {error.details()}")
            time.sleep(0.003)


def renew_certificate(world, rng):
    world.install_certificate(rng.randrange(2))


def scrape(world, rng):
    for path in ("/metrics", "/v2/health/live", "/v2/health/ready", "/nothing"):
        world.daemon.http(path)
    with socket.create_connection(("127.0.0.1", world.daemon.admin_port), timeout=10) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"[:rng.randrange(1, 38)])
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def ask_around(world, rng):
    with world.channel(rng) as channel:
        for path, message in (("ModelStatistics", b""), ("RepositoryIndex", b""), ("ModelMetadata", pb.chunk(1, "honest")),
                              ("ModelConfig", pb.chunk(1, "honest")), ("ServerMetadata", b"")):
            channel.unary_unary(SERVICE + path)(message, timeout=120)
        watches = [channel.unary_stream("/grpc.health.v1.Health/Watch")(pb.chunk(1, name)) for name in ("", "churn", "nobody")]
        for watch in watches:
            next(watch)
        reflection = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        list(reflection(iter([pb.chunk(7, "")]), timeout=120))
        for watch in watches:
            watch.cancel()


# Name, how many at once, seconds between two bouts.
ACTORS = [(honest, 3, 0.0), (whole_streams, 1, 0.2), (wrong_requests, 1, 0.3), (deadlines, 2, 0.1), (cancels, 2, 0.1),
          (rapid_reset, 1, 3.0), (floods, 1, 0.7), (half_open, 1, 0.5), (slow_readers, 1, 0.3), (malformed, 1, 0.2),
          (vanishing, 1, 0.3), (tls_abuse, 1, 0.3), (reload_models, 1, 0.3), (call_reloaded, 1, 0.0),
          (renew_certificate, 1, 2.5), (scrape, 1, 0.5), (ask_around, 1, 0.4)]
assert len({actor.__name__ for actor, _, _ in ACTORS}) == len(ACTORS) and os.name == "posix"
