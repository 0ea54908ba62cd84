"""ModelStreamInfer: by the stock Triton client, by grpcio, and by frames where a library would be too polite."""
import os
import queue
import random
import threading
import time
import unittest

import grpc
import numpy as np
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness import triton
from harness.clock import scaled, wait_for
from harness.daemon import Daemon, all_closed, sanitized
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
INFER = "/inference.GRPCInferenceService/ModelInfer"
Code = grpc.StatusCode
LIMIT = 8


def echo_request(value, rows=1, request_id=""):
    data = np.full((1, rows, 256), value, np.float32).tobytes()
    return pb.infer_request("echo", [pb.tensor("x", "FP32", [1, rows, 256])], [data], request_id=request_id)


def block_request(rows=1, request_id=""):
    return pb.infer_request("block", [pb.tensor("x", "FP32", [rows, 48])], [bytes(192 * rows)], request_id=request_id)


def answer(message):
    """(error text, request id, first output) of a ModelStreamInferResponse."""
    outer = dict(pb.fields(message))
    inner = pb.fields(outer.get(2, b""))
    request_id = next((value.decode() for field, value in inner if field == 3), "")
    output = next((value for field, value in inner if field == 6), None)
    return outer.get(1, b"").decode(), request_id, output


def total(metrics, name, part=""):
    return sum(value for key, value in metrics.items() if key.startswith(f"fusewire_infer_{name}_total{{") and part in key)


class StreamTest(unittest.TestCase):
    def start(self, settings=None, names=("echo", "block")):
        daemon = Daemon([f"{MODELS}/{name}.yaml" for name in names],
                        {"limits": {"stream_requests": LIMIT}, **(settings or {})}).start()
        self.addCleanup(daemon.kill)
        return daemon

    def channel(self, daemon):
        channel = grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        return channel

    def settled(self, daemon, enough=lambda metrics: True):
        """Sums over models and modes once nothing is in flight: accepted, and finished by code."""
        metrics = daemon.settled(enough)
        return total(metrics, "accepted"), {code: total(metrics, "finished", f'code="{code}"') for code in (
            "OK", "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED")}

    def wait_no_messages(self, daemon):
        wait_for(lambda: daemon.metrics()["fusewire_message_bytes"] == 0, what="bytes of messages are still held")

    # ---- the stock client ------------------------------------------------------------------------
    def test_the_stock_client_gets_every_answer_in_order(self):
        daemon = self.start()
        client, results = triton.connect(daemon), queue.Queue()
        client.start_stream(lambda result, error: results.put((result, error)))
        for i in range(100):
            client.async_stream_infer("echo", triton.inputs_of({"x": np.full((1, 1 + i % 3, 256), i, np.float32)}),
                                      request_id=str(i))
        for i in range(100):
            result, error = results.get(timeout=30)
            self.assertIsNone(error)
            self.assertEqual(result.get_response().id, str(i))
            self.assertTrue((result.as_numpy("y") == i).all())
        client.stop_stream()
        client.close()
        daemon.stop()

    def test_a_request_that_fails_is_answered_by_its_error_and_the_stream_goes_on(self):
        daemon = self.start()
        client, results = triton.connect(daemon), queue.Queue()
        client.start_stream(lambda result, error: results.put((result, error)))
        good, bad = {"x": np.ones((1, 2, 256), np.float32)}, {"x": np.ones((1, 2, 255), np.float32)}
        plan = [("echo", good, None), ("echo", bad, "shape"), ("nobody", good, "no model .nobody. is served"),
                ("echo", good, None)]
        for i, (model, arrays, _) in enumerate(plan):
            client.async_stream_infer(model, triton.inputs_of(arrays), request_id=f"r{i}")
        for i, (_, _, words) in enumerate(plan):
            result, error = results.get(timeout=30)
            if words:  # this client then gives no result; that the answer names the request is tested below
                self.assertRegex(error.message(), words)
            else:
                self.assertIsNone(error)
                self.assertEqual(result.get_response().id, f"r{i}")
        client.stop_stream()
        client.close()
        entry = daemon_statistics(daemon, "echo")
        self.assertEqual((entry.inference_stats.success.count, entry.inference_stats.fail.count), (2, 1))
        daemon.stop()

    # ---- order, ends -----------------------------------------------------------------------------
    def test_quick_requests_wait_for_slow_ones_in_front(self):
        daemon = self.start()
        call = self.channel(daemon).stream_stream(STREAM)
        wrong = pb.infer_request("echo", [pb.tensor("x", "FP32", [1, 1, 256])], [b"short"], request_id="wrong")
        requests = [block_request(200, "slow"), echo_request(7, request_id="quick"), wrong] * 20
        answers = [answer(message) for message in call(iter(requests), timeout=60)]
        self.assertEqual([request_id for _, request_id, _ in answers], ["slow", "quick", "wrong"] * 20)
        self.assertEqual([bool(text) for text, _, _ in answers], [False, False, True] * 20)
        daemon.stop()

    def test_an_empty_stream_and_garbage(self):
        daemon = self.start()
        call = self.channel(daemon).stream_stream(STREAM)
        self.assertEqual(list(call(iter([]), timeout=30)), [])
        messages = [b"", b"\xff\xff\xff", echo_request(1, request_id="x"), b"\x0a\x02\xc3\x28"]
        texts = [answer(message)[0] for message in call(iter(messages), timeout=30)]
        self.assertEqual([bool(text) for text in texts], [True, True, False, True])
        daemon.stop()

    def test_a_deadline_ends_the_stream_and_what_it_waits_for(self):
        daemon = self.start(names=("echo", "block"))
        silent = queue.Queue()  # a client that keeps its side open
        call = self.channel(daemon).stream_stream(STREAM)(iter(silent.get, None), timeout=scaled(1))
        silent.put(echo_request(1))
        self.assertEqual(answer(next(call))[0], "")
        with self.assertRaises(grpc.RpcError) as raised:
            next(call)
        self.assertEqual(raised.exception.code(), Code.DEADLINE_EXCEEDED)
        silent.put(None)
        daemon.stop()

    # ---- limits ----------------------------------------------------------------------------------
    def test_a_client_that_does_not_read_is_held_up_at_the_limit(self):
        daemon = self.start()
        with h2.Connection(daemon.grpc_port, settings=[(4, 0)], window_updates=False) as deaf:
            deaf.read_until(lambda: deaf.settings)
            stream = deaf.send_headers(h2.grpc_headers(STREAM))
            for i in range(200):  # 212 KB: within the window of a stream
                deaf.send_data(stream, h2.grpc_message(echo_request(i)), end_stream=False)
            deaf.read_until(lambda: deaf.stream(stream).blocks)
            accepted, finished = self.settled(daemon, lambda metrics: total(metrics, "accepted") >= LIMIT)
            self.assertEqual((accepted, finished["OK"]), (LIMIT, LIMIT))
            other = self.channel(daemon).unary_unary(INFER)
            self.assertTrue(other(echo_request(1), timeout=30))  # others are served
            deaf.window_updates = True
            deaf.send(h2.frame(h2.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")) +
                      h2.frame(h2.WINDOW_UPDATE, 0, stream, (1 << 20).to_bytes(4, "big")))
            deaf.send_data(stream, b"")
            self.assertTrue(deaf.wait(stream, 60))
            self.assertEqual(deaf.stream(stream).grpc_status, 0)
        accepted, finished = self.settled(daemon)
        self.assertEqual((accepted, finished["OK"]), (201, 201))
        daemon.stop()

    def test_memory_of_a_stream_is_bounded_by_the_windows(self):
        daemon = self.start({"limits": {"stream_requests": 2}})
        data = echo_request(1, 32)
        with h2.Connection(daemon.grpc_port, settings=[(4, 0)], window_updates=False) as deaf:
            deaf.read_until(lambda: deaf.settings)
            stream, sent = deaf.send_headers(h2.grpc_headers(STREAM)), 0
            message = h2.grpc_message(data)
            while sent + len(message) < deaf.settings[4]:
                deaf.send_data(stream, message, end_stream=False)
                sent += len(message)

            def held():  # what was sent arrives in its own time
                found = daemon.settled()["fusewire_message_bytes"]
                self.assertLess(found, 3 * deaf.settings[4])
                return found > sent / 2

            wait_for(held)
        self.settled(daemon)
        self.wait_no_messages(daemon)
        daemon.stop()

    # ---- conservation ----------------------------------------------------------------------------
    def test_streams_that_end_anyhow_leave_nothing_behind(self):
        """accepted = ok + failed + cancelled + in flight: in /metrics, in ModelStatistics, and no fewer than clients saw."""
        daemon, seen = self.start(), {"ok": 0, "failed": 0}
        lock = threading.Lock()

        def work(seed):
            rng = random.Random(seed)
            channel = grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(6 if sanitized() else 15):
                n, stop = rng.randrange(1, 30), rng.randrange(0, 30)
                requests = [rng.choice([echo_request(1), block_request(rng.randrange(1, 99)), block_request(300),
                                        pb.infer_request("echo", [pb.tensor("x", "FP32", [1, 1, 256])], [b"short"])])
                            for _ in range(n)]
                call = channel.stream_stream(STREAM)(iter(requests), timeout=rng.choice([0.002, 0.02, 30]))
                try:
                    for i, message in enumerate(call):
                        with lock:
                            seen["failed" if answer(message)[0] else "ok"] += 1
                        if i == stop:
                            call.cancel()
                except grpc.RpcError as error:
                    self.assertIn(error.code(), (Code.CANCELLED, Code.DEADLINE_EXCEEDED))
            channel.close()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        accepted, finished = self.settled(daemon, all_closed)
        entries = [daemon_statistics(daemon, name) for name in ("echo", "block")]
        ok = sum(entry.inference_stats.success.count for entry in entries)
        fail = sum(entry.inference_stats.fail.count for entry in entries)
        cancelled = sum(entry.response_stats["0"].cancel.count for entry in entries)
        self.assertEqual(ok + fail, accepted)
        self.assertEqual((ok, cancelled), (finished["OK"], finished["CANCELLED"]))
        self.assertGreaterEqual(ok, seen["ok"])
        self.assertGreaterEqual(fail, seen["failed"])
        print(f"{accepted:.0f} accepted: {ok} ok, {fail} failed ({cancelled} cancelled); clients saw {seen}")
        self.wait_no_messages(daemon)
        daemon.stop()

    def test_draining_answers_what_was_asked_and_ends_the_streams(self):
        daemon = self.start()
        silent = [queue.Queue() for _ in range(4)]
        calls = [self.channel(daemon).stream_stream(STREAM)(iter(one.get, None)) for one in silent]
        for one, call in zip(silent, calls):
            one.put(echo_request(1))
            self.assertEqual(answer(next(call))[0], "")
        began = time.monotonic()
        daemon.signal()
        for one, call in zip(silent, calls):
            with self.assertRaises(grpc.RpcError) as raised:
                next(call)
            self.assertEqual(raised.exception.code(), Code.UNAVAILABLE)
            one.put(None)
        self.assertEqual(daemon.wait(), 0)
        self.assertLess(time.monotonic() - began, 20)


def daemon_statistics(daemon, model):
    with triton.connect(daemon) as client:
        return client.get_inference_statistics(model).model_stats[0]
