"""Too much to do in time: refused at once, with the reason, and counted; and peers that take without giving cost nobody else."""
import os
import time
import unittest

from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness import slow_model
from harness.clock import wait_for
from harness.daemon import Daemon, sanitized
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
INFER = "/inference.GRPCInferenceService/ModelInfer"
OK, DEADLINE, EXHAUSTED = 0, 4, 8
ROWS = 512 if sanitized() else 2048
MIB = 1 << 20


def slow_request(rows=ROWS):
    return pb.infer_request("slow", [pb.tensor("x", "FP32", [1, rows, 64])], [bytes(256 * rows)])


def echo_request(rows=1):
    data = os.urandom(1024 * rows)
    return pb.infer_request("echo", [pb.tensor("x", "FP32", [1, rows, 256])], [data]), data


def timeout(seconds):
    return [("grpc-timeout", f"{max(1, int(seconds * 1e6))}u")]


class OverloadTest(unittest.TestCase):
    def start(self, names, settings=None):
        files = [slow_model.write(self) if name == "slow" else f"{MODELS}/{name}.yaml" for name in names]
        daemon = Daemon(files, settings).start()
        self.addCleanup(daemon.kill)
        return daemon

    def connect(self, daemon, **options):
        connection = h2.Connection(daemon.grpc_port, timeout=60, **options)
        self.addCleanup(connection.close)
        connection.read_until(lambda: connection.settings)
        return connection

    def total(self, daemon, name, **labels):
        return sum(value for key, value in daemon.metrics().items()
                   if key.startswith(name + "{") and all(f'{label}="{text}"' in key for label, text in labels.items()))

    def refused(self, daemon, reason):
        return self.total(daemon, "fusewire_infer_refused_total", model="slow", reason=reason)

    def measured(self, daemon, connection):
        """What a slow request takes, now known to the daemon too."""
        seconds = []
        for _ in range(2):
            began = time.monotonic()
            self.assertEqual(connection.call(INFER, slow_request()).grpc_status, OK)
            seconds.append(time.monotonic() - began)
        return min(seconds)

    # ---- deadlines -------------------------------------------------------------------------------
    def test_what_its_own_time_forbids_is_refused_at_once(self):
        daemon = self.start(("slow",))
        connection = self.connect(daemon)
        whole = self.measured(daemon, connection)
        batches = self.total(daemon, "fusewire_batches_total", model="slow")
        began = time.monotonic()
        answer = connection.call(INFER, slow_request(), timeout(whole / 3))
        waited = time.monotonic() - began
        print(f"{whole * 1e3:.0f} ms of work, a third of it allowed: refused after {waited * 1e3:.1f} ms: {answer.grpc_message}")
        self.assertEqual(answer.grpc_status, DEADLINE)
        self.assertIn("refused at once", answer.grpc_message)
        self.assertEqual(self.refused(daemon, "slow"), 1)
        self.assertEqual(self.total(daemon, "fusewire_batches_total", model="slow"), batches)  # it never ran
        self.assertEqual(connection.call(INFER, slow_request(), timeout(60)).grpc_status, OK)
        connection.close()
        daemon.stop()

    def test_what_the_queue_forbids_is_refused_at_once(self):
        daemon = self.start(("slow",))
        connection = self.connect(daemon)
        whole = self.measured(daemon, connection)
        streams = [connection.start_call(INFER, slow_request(), timeout(whole * 3.5)) for _ in range(10)]
        for stream in streams:
            connection.wait(stream)
        answers = [connection.stream(stream) for stream in streams]
        codes = [answer.grpc_status for answer in answers]
        print(f"ten times {whole * 1e3:.0f} ms of work in three and a half of that: {codes}")
        self.assertLessEqual(set(codes), {OK, DEADLINE, EXHAUSTED})
        self.assertGreaterEqual(codes.count(EXHAUSTED), 5)
        for answer in answers:
            if answer.grpc_status == EXHAUSTED:
                self.assertIn("ahead of it", answer.grpc_message)
        self.assertEqual(self.refused(daemon, "busy"), codes.count(EXHAUSTED))
        # Each is finished once, and those that were refused never ran.
        self.assertEqual(self.total(daemon, "fusewire_infer_accepted_total", model="slow"), 12)
        self.assertEqual(self.total(daemon, "fusewire_infer_finished_total", model="slow"), 12)
        self.assertLessEqual(self.total(daemon, "fusewire_batches_total", model="slow"), 12 - codes.count(EXHAUSTED))
        connection.close()
        daemon.stop()

    def test_the_deadline_counts_from_the_headers(self):
        daemon = self.start(("slow",))
        connection = self.connect(daemon)
        whole = self.measured(daemon, connection)
        batches = self.total(daemon, "fusewire_batches_total", model="slow")
        # A message that does not come: answered at the deadline.
        stream = connection.send_headers(h2.grpc_headers(INFER, timeout(0.1)))
        body = h2.grpc_message(slow_request())
        connection.send_data(stream, body[:1000], end_stream=False)
        connection.wait(stream)
        self.assertEqual(connection.stream(stream).grpc_status, DEADLINE)
        self.assertIn("before the message was complete", connection.stream(stream).grpc_message)
        # One that takes a good part of its time to come: what is left is too little, and it never runs.
        stream = connection.send_headers(h2.grpc_headers(INFER, timeout(whole * 1.4)))
        connection.send_data(stream, body[:1000], end_stream=False)
        time.sleep(whole * 0.7)
        connection.send_data(stream, body[1000:])
        connection.wait(stream)
        self.assertEqual(connection.stream(stream).grpc_status, DEADLINE, connection.stream(stream).grpc_message)
        self.assertEqual(self.total(daemon, "fusewire_batches_total", model="slow"), batches)
        connection.close()
        daemon.stop()

    # ---- peers that cost without giving ----------------------------------------------------------
    def beside(self, daemon, calls=100):
        """An honest client's calls are all answered, and right."""
        with h2.Connection(daemon.grpc_port, timeout=60) as honest:
            for _ in range(calls):
                request, data = echo_request()
                answer = honest.call(INFER, request)
                self.assertEqual(answer.grpc_status, OK, answer.grpc_message)
                self.assertIn(data, answer.data)

    def test_half_open_calls_stalled_uploads_and_slow_readers_are_bounded(self):
        """Message bytes stay within the limits of each connection, and others are served with what is left of the total."""
        limits = {"connection_bytes": 8 * MIB, "total_bytes": 64 * MIB, "message_bytes": 4 * MIB}
        daemon = self.start(("echo",), {"limits": limits})
        half = self.connect(daemon)  # headers and no message
        for _ in range(1000):
            half.send_headers(h2.grpc_headers(INFER))
        stalled = self.connect(daemon)  # all of its window of four large messages, and then silence
        body = h2.grpc_message(echo_request(2048)[0])
        for _ in range(4):
            stalled.send_data(stalled.send_headers(h2.grpc_headers(INFER)), body[:len(body) // 2], end_stream=False)
        deaf = self.connect(daemon, settings=[(4, 0)], window_updates=False)  # takes no answer
        request = h2.grpc_message(echo_request(64)[0])
        for _ in range(40):
            deaf.send_data(deaf.send_headers(h2.grpc_headers(INFER)), request)
        self.beside(daemon)
        held = daemon.metrics()["fusewire_message_bytes"]
        print(f"{held / MIB:.1f} MiB held for three of them")
        self.assertLess(held, 2 * limits["connection_bytes"] + 2 * MIB)
        for connection in (half, stalled, deaf):
            connection.close()
        self.beside(daemon, 1)
        wait_for(lambda: daemon.metrics()["fusewire_message_bytes"] == 0,
                 what="bytes of connections that are gone are still held")
        daemon.stop()

    def test_greedy_connections_leave_memory_to_others(self):
        """Many that hold as much as they can get: the process's budget is not used up by them."""
        limits = {"connection_bytes": 16 * MIB, "total_bytes": 64 * MIB, "message_bytes": 4 * MIB}
        daemon = self.start(("echo",), {"limits": limits})
        body, greedy = h2.grpc_message(echo_request(512)[0]), []
        for _ in range(20):
            connection = self.connect(daemon, settings=[(4, 0)], window_updates=False)
            greedy.append(connection)
            for _ in range(7):  # what its window allows
                connection.send_data(connection.send_headers(h2.grpc_headers(INFER)), body)
        wait_for(lambda: daemon.metrics()['fusewire_calls_refused_total{reason="total_bytes"}'] > 0,
                 what="nobody was refused: the budget was never short")
        self.beside(daemon)
        held = daemon.metrics()["fusewire_message_bytes"]
        print(f"{held / MIB:.1f} of 64 MiB are held for twenty of them")
        self.assertLess(held, limits["total_bytes"])
        for connection in greedy:
            connection.close()
        self.beside(daemon, 1)
        daemon.stop()


if __name__ == "__main__":
    unittest.main()
