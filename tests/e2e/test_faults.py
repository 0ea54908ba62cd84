"""Faults that peers were reported to have, where no other file tests them; docs/FAULTS.md lists all with their tests."""
import os
import re
import signal
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import grpc
import numpy as np
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness.daemon import Daemon, daemon_path, sanitized
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
INFER = "/inference.GRPCInferenceService/ModelInfer"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
Code = grpc.StatusCode
MIB = 1 << 20


def echo_request(rows):
    return pb.infer_request("echo", [pb.tensor("x", "FP32", [1, rows, 256])], [bytes(1024 * rows)])


def window(amount):
    return struct.pack(">I", amount)


class FaultsTest(unittest.TestCase):
    def start(self, names=("echo",), settings=None):
        daemon = Daemon([f"{MODELS}/{name}.yaml" for name in names], settings).start()
        self.addCleanup(daemon.kill)
        return daemon

    # ---- memory ----------------------------------------------------------------------------------
    def test_many_of_the_largest_messages_at_once_stay_within_the_budget(self):
        """Forty clients send four messages of 2 MiB each, together ten times what the process may hold."""
        budget = 32 * MIB
        daemon = self.start(settings={"limits": {
            "total_bytes": budget, "connection_bytes": budget // 2, "message_bytes": 3 * MIB}})
        before, codes, lock = daemon.proc("VmRSS"), [], threading.Lock()
        request = echo_request(2048)

        def work():
            with grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1),
                                                                ("grpc.max_receive_message_length", -1)]) as channel:
                futures = [channel.unary_unary(INFER).future(request, timeout=120) for _ in range(4)]
                found = [(future.code(), future.details()) for future in futures]
            with lock:
                codes.extend(found)

        threads = [threading.Thread(target=work) for _ in range(10 if sanitized() else 40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLessEqual({code for code, _ in codes}, {Code.OK, Code.RESOURCE_EXHAUSTED})
        self.assertIn(Code.OK, {code for code, _ in codes})
        for code, details in codes:
            if code != Code.OK:
                self.assertRegex(details, r"limits\.|batch\.")
        if not sanitized():  # the messages, the answers' small parts, windows of what was in the sockets
            self.assertLess((daemon.proc("VmHWM") - before) * 1024, budget + 24 * MIB)
        with grpc.insecure_channel(daemon.address) as channel:
            self.assertTrue(channel.unary_unary(INFER)(echo_request(1), timeout=30))
        daemon.stop()

    # ---- pings -----------------------------------------------------------------------------------
    def keepalive(self, daemon, milliseconds):
        channel = grpc.insecure_channel(daemon.address, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", milliseconds),
            ("grpc.http2.max_pings_without_data", 0), ("grpc.keepalive_permit_without_calls", 1)])
        self.addCleanup(channel.close)
        return channel

    def test_a_stock_client_with_keepalive_is_let_be_at_the_interval(self):
        daemon = self.start(settings={"limits": {"ping_interval": 200}})
        channel = self.keepalive(daemon, 1000)
        watch = channel.unary_stream(WATCH)(b"")
        self.assertEqual(next(watch), b"\x08\x01")
        time.sleep(3.2)  # three PINGs and nothing else
        self.assertIsNone(watch.code() if watch.done() else None)
        watch.cancel()
        self.assertEqual(daemon.metrics()["fusewire_connections_accepted_total"], 1)
        daemon.stop()

    # ---- ends of streams -------------------------------------------------------------------------
    def test_an_early_end_waits_for_the_window_and_comes_in_order(self):
        """A stream that fails before the client has finished: what was answered first, the trailers, then NO_ERROR, even
        when the client's window holds the answer back; other calls go on."""
        daemon = self.start()
        with h2.Connection(daemon.grpc_port, settings=[(4, 0)], window_updates=False) as connection:
            stream = connection.send_headers(h2.grpc_headers(REFLECTION))
            connection.send_data(stream, h2.grpc_message(pb.chunk(7, "")), end_stream=False)
            self.assertTrue(connection.read_until(lambda: connection.stream(stream).blocks))
            connection.send_data(stream, h2.grpc_message(b"\xff\xff\xff"), end_stream=False)
            self.assertEqual(connection.call(REFLECTION, b"\xff").grpc_status, 13)  # without DATA: its window is no matter
            self.assertEqual(connection.stream(stream).data, b"")
            connection.send(h2.frame(h2.WINDOW_UPDATE, 0, stream, window(MIB)))
            self.assertTrue(connection.read_until(lambda: connection.stream(stream).reset is not None))
            kinds = [(kind, bool(flags & h2.END_STREAM) if kind != h2.RST_STREAM else None)
                     for kind, flags, of, payload in connection.frames if of == stream and kind != h2.WINDOW_UPDATE]
            self.assertEqual(kinds, [(h2.HEADERS, False), (h2.DATA, False), (h2.HEADERS, True), (h2.RST_STREAM, None)])
            self.assertEqual((connection.stream(stream).grpc_status, connection.stream(stream).reset), (13, h2.NO_ERROR))
            connection.send_data(stream, b"x" * 1000, end_stream=False)  # of no interest any more
            self.assertEqual(connection.call(REFLECTION, b"\xff").grpc_status, 13)
            self.assertEqual(connection.goaways, [])
        daemon.stop()

    def test_a_fresh_connection_with_more_calls_than_run_at_once(self):
        """1200 calls before the first answer: one more than are allowed must not cost the others."""
        daemon = self.start(("block",), {"limits": {"calls_per_connection": 2000}})
        request = h2.grpc_message(pb.infer_request("block", [pb.tensor("x", "FP32", [1, 48])], [bytes(192)]))
        with h2.Connection(daemon.grpc_port, timeout=60) as connection:
            block = [connection.encoder.encode(h2.grpc_headers(INFER)) for _ in range(3)]
            streams = [connection.new_stream() for _ in range(1200)]
            connection.send(b"".join(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block[min(i, 2)]) + h2.frame(
                h2.DATA, h2.END_STREAM, stream, request) for i, stream in enumerate(streams)))
            self.assertTrue(connection.read_until(lambda: all(connection.stream(stream).done for stream in streams)))
            codes = [connection.stream(stream).grpc_status for stream in streams]
            self.assertLessEqual(set(codes), {0, 8}, connection.goaways)  # answered, or refused by status
            self.assertGreater(codes.count(0), 500)
        daemon.stop()

    # ---- numbers ---------------------------------------------------------------------------------
    def test_rows_without_variance_are_finite(self):
        daemon = self.start(("block",))
        with grpc.insecure_channel(daemon.address) as channel:
            for value in (0.0, 1.0, -3e4, 1e-30):
                data = np.full((4, 48), value, np.float32).tobytes()
                request = pb.infer_request("block", [pb.tensor("x", "FP32", [4, 48])], [data])
                reply = channel.unary_unary(INFER)(request, timeout=30)
                output = np.frombuffer(next(item for field, item in pb.fields(reply) if field == 6), np.float32)
                self.assertTrue(np.isfinite(output).all(), value)
        daemon.stop()

    # ---- signals ---------------------------------------------------------------------------------
    def test_a_signal_while_models_load_at_start(self):
        with tempfile.TemporaryDirectory() as folder:
            model, config = os.path.join(folder, "big.yaml"), os.path.join(folder, "server.yaml")
            with open(model, "w") as file:
                file.write("name: big\nweights: {synthetic: {seed: 1}}\ninputs:\n"
                           "  - {name: x, dtype: fp32, shape: [batch, 2048]}\ngraph:\n" + "".join(
                               f"  - linear: {{weights: w{i}, features: 2048, out: y{i}}}\n" for i in range(12))
                           + "outputs:\n  - {name: y, from: y11}\n")
            with open(config, "w") as file:
                file.write("server: {listen: '127.0.0.1:0', admin: '127.0.0.1:0'}\n")
            for number in (signal.SIGINT, signal.SIGTERM):
                process = subprocess.Popen([daemon_path(), "--config", config, model], stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, text=True)
                time.sleep(0.3 if sanitized() else 0.1)
                early = process.poll() is None
                process.send_signal(number)
                output, _ = process.communicate(timeout=120)
                self.assertTrue(early, output)
                self.assertIn(process.returncode, (0, -number), output)  # before it has a handler, the signal's own end
                self.assertIsNone(re.search(r"Sanitizer|assert", output), output)


if __name__ == "__main__":
    unittest.main()
