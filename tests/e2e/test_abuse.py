"""Hostile peers: each attack ends with the right GOAWAY at a bounded cost, while an honest client beside it is served."""
import os
import socket
import struct
import threading
import time
import unittest

import grpc
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness.clock import scaled, wait_for
from harness.daemon import Daemon, sanitized
from harness.run import ROOT

ECHO = os.path.join(ROOT, "tests", "e2e", "models", "echo.yaml")
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
MIB = 1 << 20
CONNECTION_BYTES = 16 * MIB
HONEST_RESETS_A_SECOND = 10000


def number(value):
    return struct.pack(">I", value)


def echo_request(rows=1):
    data = os.urandom(1024 * rows)
    return pb.infer_request("echo", [pb.tensor("x", "FP32", [1, rows, 256])], [data]), data


class Honest(threading.Thread):
    """Calls as fast as they are answered, on a connection of its own."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.address, self.over, self.answered = daemon.address, threading.Event(), threading.Event()
        self.seconds, self.failures = [], []

    def run(self):
        request, data = echo_request()
        with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = channel.unary_unary(INFER)
            while not self.over.is_set():
                began = time.monotonic()
                try:
                    if data not in infer(request, timeout=scaled(30)):
                        self.failures.append("a wrong answer")
                except grpc.RpcError as error:
                    self.failures.append(f"{error.code()} {error.details()}")
                self.seconds.append(time.monotonic() - began)
                self.answered.set()
                time.sleep(0.001)


class Frames:
    """Many requests as one string of bytes: after the first two, their headers are the same bytes."""

    def __init__(self, connection, path=INFER, extra=()):
        self.connection = connection
        headers = h2.grpc_headers(path, extra)
        self.blocks = [connection.encoder.encode(headers) for _ in range(3)]
        self.n = 0

    def headers(self, flags=h2.END_HEADERS):
        block = self.blocks[min(self.n, 2)]
        self.n += 1
        stream = self.connection.new_stream()
        return stream, h2.frame(h2.HEADERS, flags, stream, block)


class AbuseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon([ECHO], {"limits": {
            "message_bytes": 8 * MIB, "connection_bytes": CONNECTION_BYTES, "handshake_timeout": 1500}}).start()
        honest = Honest(cls.daemon)  # caches fill before anything is measured
        honest.start()
        assert honest.answered.wait(scaled(60))
        time.sleep(0.3)
        honest.over.set()
        honest.join()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def setUp(self):
        with open(f"/proc/{self.daemon.process.pid}/clear_refs", "w") as file:
            file.write("5")  # VmHWM begins anew
        self.rss, self.cpu = self.daemon.proc("VmRSS"), self.daemon.cpu_seconds()
        self.honest = Honest(self.daemon)
        self.honest.start()
        self.assertTrue(self.honest.answered.wait(scaled(60)), "the honest client is served before the attack")

    def bounded(self, cpu_seconds=1.0, grown=8 * MIB):
        """What the attack cost; the honest client was served all along."""
        cpu, peak = self.daemon.cpu_seconds() - self.cpu, self.daemon.proc("VmHWM")
        self.honest.answered.clear()  # an attack may be over before a call is: one more call, on the same connection
        self.assertTrue(self.honest.answered.wait(scaled(60)), "the honest client is served after the attack")
        self.honest.over.set()
        self.honest.join(scaled(60))
        served = sorted(self.honest.seconds)
        self.assertEqual(self.honest.failures, [])
        print(f"{self._testMethodName}: {cpu:.2f} s CPU, {(peak - self.rss) / 1024:.1f} MiB, {len(served)} honest calls, "
              f"p99 {served[int(len(served) * 0.99)] * 1e3:.1f} ms")
        if sanitized():
            return
        self.assertLess(cpu, cpu_seconds + len(served) * 0.0005)
        self.assertLess((peak - self.rss) * 1024, grown)
        self.assertLess(served[-1], 5)

    def connect(self, **options):
        connection = h2.Connection(self.daemon.grpc_port, timeout=20, **options)
        self.addCleanup(connection.close)
        return connection

    def assert_ended(self, connection, *codes):
        self.assertTrue(connection.wait_closed(), "the connection stays open")
        self.assertTrue(connection.goaways, "closed without a GOAWAY")
        self.assertIn(connection.goaways[-1][1], codes)

    # ---- streams ---------------------------------------------------------------------------------
    def test_rapid_reset(self):
        count = 40000
        for with_request in (False, True):
            for _ in range(5):  # on a machine that is busy with others
                connection = self.connect()
                make, frames = Frames(connection), []
                for _ in range(count):
                    stream, headers = make.headers()
                    data = h2.frame(h2.DATA, h2.END_STREAM, stream, h2.grpc_message(b"")) if with_request else b""
                    frames += [headers, data, h2.frame(h2.RST_STREAM, 0, stream, number(h2.CANCEL))]
                if connection.flood(b"".join(frames), LIVE, count / HONEST_RESETS_A_SECOND - 1):
                    break
            self.assert_ended(connection, h2.ENHANCE_YOUR_CALM)
        self.bounded(2.0)

    def test_made_you_reset(self):
        for name, flags, spoil in (
                ("window update of 0", h2.END_HEADERS, lambda s: h2.frame(h2.WINDOW_UPDATE, 0, s, number(0))),
                ("window overflow", h2.END_HEADERS, lambda s: h2.frame(h2.WINDOW_UPDATE, 0, s, number(0x7FFFFFFF))),
                ("DATA after the end", h2.END_HEADERS | h2.END_STREAM, lambda s: h2.frame(h2.DATA, 0, s, b"x")),
                ("HEADERS after the end", h2.END_HEADERS | h2.END_STREAM, lambda s: h2.frame(
                    h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, s, b""))):
            with self.subTest(name):
                connection = self.connect()
                make = Frames(connection)
                made = (make.headers(flags) for _ in range(3000))
                connection.send(b"".join(headers + spoil(stream) for stream, headers in made))
                self.assert_ended(connection, h2.ENHANCE_YOUR_CALM, h2.STREAM_CLOSED, h2.PROTOCOL_ERROR)
                # What comes in one read is looked at before the first reset leaves: the limit of streams ends that.
                self.assertLess(connection.goaways[-1][0] // 2, 1100)
        self.bounded()

    def test_honest_mass_cancellation_is_no_attack(self):
        """5,000 calls a second, each cancelled before its answer is looked at, on one connection."""
        connection = self.connect()
        make, seconds = Frames(connection), 1 if sanitized() else 3
        request = h2.grpc_message(echo_request()[0])
        began = time.monotonic()
        for tick in range(seconds * 100):
            frames = []
            for _ in range(50):
                stream, headers = make.headers()
                frames += [headers, h2.frame(h2.DATA, h2.END_STREAM, stream, request), h2.frame(
                    h2.RST_STREAM, 0, stream, number(h2.CANCEL))]
            connection.send(b"".join(frames))
            connection.read_for(max(0.0005, began + (tick + 1) / 100 - time.monotonic()))
        self.assertEqual(connection.goaways, [])
        self.assertEqual(connection.call(LIVE, b"").grpc_status, 0)
        self.bounded(3.0)

    def test_announced_messages_that_never_come(self):
        connection = self.connect()
        make, frames = Frames(connection), []
        for _ in range(900):
            stream, headers = make.headers()
            frames += [headers, h2.frame(h2.DATA, 0, stream, h2.grpc_message(b"x", length=4 * MIB))]
        connection.send(b"".join(frames))
        self.assertEqual(connection.call(LIVE, b"").grpc_status, 0)
        self.bounded(grown=CONNECTION_BYTES + 8 * MIB)

    # ---- frames without use ----------------------------------------------------------------------
    def test_floods_of_frames_without_use(self):
        settings = b"".join(struct.pack(">HI", 0x99, i) for i in range(2000))
        for name, frame, count, codes in (
                ("PING", h2.frame(h2.PING, 0, 0, bytes(8)), 20000, (h2.ENHANCE_YOUR_CALM,)),
                ("SETTINGS", h2.frame(h2.SETTINGS, 0, 0), 20000, (h2.ENHANCE_YOUR_CALM,)),
                ("large SETTINGS", h2.frame(h2.SETTINGS, 0, 0, settings), 2000, (h2.ENHANCE_YOUR_CALM, h2.FRAME_SIZE_ERROR)),
                ("PRIORITY", h2.frame(h2.PRIORITY, 0, 1, bytes(4) + b"\x10"), 20000, ()),
                ("WINDOW_UPDATE", h2.frame(h2.WINDOW_UPDATE, 0, 0, number(1)), 50000, (h2.ENHANCE_YOUR_CALM,)),
                ("unknown frames", h2.frame(0x42, 0, 0, b"?"), 50000, ())):
            with self.subTest(name):
                connection = self.connect()
                connection.send(frame * count)
                if codes:
                    self.assert_ended(connection, *codes)
                else:  # to be ignored (RFC 9113, 4.1; RFC 9218, 2.1): they cost what reading them costs
                    self.assertEqual(connection.call(LIVE, b"").grpc_status, 0)
        self.bounded(2.0)

    def test_empty_data(self):
        connection = self.connect()
        stream = connection.send_headers(h2.grpc_headers(INFER))
        connection.send(h2.frame(h2.DATA, 0, stream) * 20000)
        self.assert_ended(connection, h2.ENHANCE_YOUR_CALM)
        connection = self.connect()
        stream = connection.send_headers(h2.grpc_headers(INFER))
        connection.send(h2.frame(h2.DATA, h2.PADDED, stream, b"\x05" + bytes(5)) * 5000)
        self.assert_ended(connection, h2.ENHANCE_YOUR_CALM)
        self.bounded()

    def test_continuation(self):
        for piece in (b"", b"\x00\x01a\x01b" * 2000):
            connection = self.connect()
            block = connection.encoder.encode(h2.grpc_headers(LIVE))
            connection.send(h2.frame(h2.HEADERS, 0, 1, block) + h2.frame(h2.CONTINUATION, 0, 1, piece) * 500)
            self.assert_ended(connection, h2.ENHANCE_YOUR_CALM)
        self.bounded()

    def test_hpack_bombs(self):
        connection = self.connect()
        name, value = b"x-bomb", b"v" * 3900
        bomb = b"\x40" + bytes([len(name)]) + name + b"\x7f" + pb.varint(len(value) - 127) + value
        make = Frames(connection)
        for _ in range(200):
            stream = connection.new_stream()
            block = make.blocks[0] + bomb + b"\xbe" * 3000
            connection.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, block))
        self.assert_ended(connection, h2.ENHANCE_YOUR_CALM)
        self.assertLess(connection.goaways[-1][0] // 2, 40)
        self.bounded()

    # ---- slow peers ------------------------------------------------------------------------------
    def test_windows_of_zero_and_one(self):
        """Answers that nobody takes: at most a connection's bytes are held; trailers come once when they are taken."""
        connection = self.connect(settings=[(4, 0)], window_updates=False)
        request, data = echo_request(256)
        message = h2.grpc_message(request)

        def window():  # what the connection may still send
            updates = (struct.unpack(">I", payload)[0] for kind, _, of, payload in connection.frames
                       if kind == h2.WINDOW_UPDATE and of == 0)
            return 65535 + sum(updates) - len(message) * len(streams)

        streams = []
        while len(streams) < 18 and connection.read_until(lambda: window() >= len(message), 5):
            stream = connection.send_headers(h2.grpc_headers(INFER))
            connection.send_data(stream, message)
            streams.append(stream)
        self.assertEqual(len(streams), 18)  # half of what may be held: from there on nothing more is let in
        self.assertTrue(connection.read_until(lambda: connection.stream(streams[0]).blocks))
        for n in range(1, 201):
            connection.send(h2.frame(h2.WINDOW_UPDATE, 0, streams[0], number(1)))
            connection.read_for(0.0005)
            self.assertLessEqual(len(connection.stream(streams[0]).data), n)
        self.assertTrue(connection.read_until(lambda: len(connection.stream(streams[0]).data) == 200))
        self.assertEqual(connection.goaways, [])
        connection.send(h2.frame(h2.WINDOW_UPDATE, 0, 0, number(64 * MIB)) + h2.frame(
            h2.WINDOW_UPDATE, 0, streams[0], number(MIB)))
        connection.wait(streams[0])
        first = connection.stream(streams[0])
        self.assertEqual((first.grpc_status, len(first.blocks)), (0, 2))
        self.assertIn(data, first.data)
        self.bounded(2.0, CONNECTION_BYTES + 8 * MIB)

    def test_slowloris(self):
        """Two hundred connections that stop anywhere in their first request, or go on by a byte now and then."""
        probe = self.connect()
        block = probe.encoder.encode(h2.grpc_headers(INFER))
        whole = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block)
        sockets = []
        for i in range(200):
            client = socket.create_connection(("127.0.0.1", self.daemon.grpc_port), timeout=10)
            client.sendall(whole[:len(whole) * i // 200])
            sockets.append((client, len(whole) * i // 200))
        for step in range(30):
            time.sleep(0.1)
            for client, sent in sockets[::10]:
                try:
                    client.sendall(whole[sent + step:sent + step + 1])
                except OSError:
                    pass
        left = [client for client, _ in sockets]

        def is_open(client):
            client.settimeout(0)
            try:
                while client.recv(4096):
                    pass
                return False
            except ConnectionResetError:
                return False
            except BlockingIOError:
                return True  # its SETTINGS came, and no HEADERS yet: an idle client

        def most_have_ended():
            left[:] = [client for client in left if is_open(client)]
            return len(left) < 100

        wait_for(most_have_ended, what=lambda: f"{len(left)} of {len(sockets)} are still open")
        for client, _ in sockets:
            client.close()
        self.bounded(1.0, 200 * 64 * 1024)


if __name__ == "__main__":
    unittest.main()
