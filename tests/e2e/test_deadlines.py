"""Calls with deadlines around the service time, against the real daemon, by frames: a client without a clock of its own counts
what the daemon does. FUSEWIRE_DEADLINE_CALLS says how many (`./dev bench deadlines`: 100,000 under ThreadSanitizer)."""
import os
import random
import time
import unittest
from collections import Counter

from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness import soak
from harness.daemon import Daemon, sanitized
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
INFER = "/inference.GRPCInferenceService/ModelInfer"
CALLS = int(os.environ.get("FUSEWIRE_DEADLINE_CALLS", 1500 if sanitized() else 3000))
CODES = {"0": "OK", "4": "DEADLINE_EXCEEDED", "8": "RESOURCE_EXHAUSTED"}  # the last: by prediction, at the door
TOGETHER = 16  # on each of two connections


def block_request(rows):
    return pb.infer_request("block", [pb.tensor("x", "FP32", [rows, 48])], [bytes(192 * rows)])


class Calls:
    """One connection; its streams are forgotten when they are looked at, so that a hundred thousand are no matter."""

    def __init__(self, daemon):
        self.connection = h2.Connection(daemon.grpc_port, timeout=60)
        self.open, self.ends, self.seconds = {}, Counter(), []

    def start(self, rng, service_s=None):
        timeout = f"{max(1, int(rng.uniform(0, 2.5) * service_s * 1e6))}u" if service_s else "1H"
        stream = self.connection.start_call(INFER, block_request(rng.randrange(1, 17)), [("grpc-timeout", timeout)])
        self.open[stream] = time.monotonic()

    def look(self, problems):
        for number in [number for number in self.open if self.connection.stream(number).done]:
            stream = self.connection.streams[number]
            statuses = [block["grpc-status"] for block in stream.blocks if "grpc-status" in block]
            output = sum(field == 6 for field, _ in pb.fields(stream.data[5:])) if stream.data else 0
            if len(statuses) != 1 or (statuses == ["0"]) != (output == 1):
                problems.append(f"{statuses} with {output} outputs, reset {stream.reset}")
            self.ends[CODES.get(statuses[0] if statuses else "", "other")] += 1
            self.seconds.append(time.monotonic() - self.open.pop(number))
        for kind, _, number, _ in self.connection.frames:  # nothing comes behind an end
            if kind in (h2.DATA, h2.HEADERS) and number and number not in self.connection.streams:
                problems.append(f"a frame of kind {kind} for a call that had ended")
        self.connection.frames.clear()
        for number in [number for number in self.connection.streams if number not in self.open]:
            del self.connection.streams[number]


class DeadlinesTest(unittest.TestCase):
    def service_time(self, calls):
        """Median over calls as they will come: many at once."""
        rng, problems = random.Random(0), []
        for _ in range(6):
            for _ in range(TOGETHER):
                calls.start(rng)
            self.assertTrue(calls.connection.read_until(lambda: all(
                calls.connection.stream(number).done for number in calls.open)))
            calls.look(problems)
        self.assertEqual((problems, calls.ends["OK"]), ([], 6 * TOGETHER))
        return sorted(calls.seconds)[len(calls.seconds) // 2]

    def test_deadlines_around_the_service_time_end_each_call_once(self):
        rng, problems, sent = random.Random(7), [], 0
        with Daemon([f"{MODELS}/block.yaml"], {"server": {"loops": 2}}) as daemon:
            both = [Calls(daemon) for _ in range(2)]
            service_s = self.service_time(both[0])
            while (sent < CALLS or any(calls.open for calls in both)) and not problems:
                for calls in both:
                    while len(calls.open) < TOGETHER and sent < CALLS:
                        calls.start(rng, service_s)
                        sent += 1
                    calls.connection.read_until(lambda: any(
                        calls.connection.stream(number).done for number in calls.open), 0.02)
                    self.assertFalse(calls.connection.closed, calls.connection.goaways)
                    before = sum(calls.ends.values()) - 2 * calls.ends["OK"]
                    calls.look(problems)  # deadlines follow the service time, so that about half of the calls make theirs
                    late = sum(calls.ends.values()) - 2 * calls.ends["OK"] - before
                    service_s = min(10.0, max(2e-5, service_s * 1.01 ** late))
            seen = both[0].ends + both[1].ends
            self.assertEqual(problems, [])
            self.assertEqual((sum(seen.values()), seen["other"]), (CALLS + 6 * TOGETHER, 0))
            late = sum(seen.values()) - seen["OK"]
            self.assertGreater(min(seen["OK"], late), CALLS / 20)  # or they were not around it
            metrics = daemon.settled()  # who was told that its time is up may still be in a batch
            ends, accepted = soak.finished(metrics, "block"), soak.total(metrics, "fusewire_infer_accepted_total", "block")
            print(f"deadlines up to {service_s * 2.5e3:.2f} ms at the end; {CALLS} calls ended {dict(seen)}; the daemon "
                  f"accepted {accepted}: {dict(ends)}")
            self.assertEqual(ends["OK"], seen["OK"])
            self.assertEqual(sum(ends.values()), accepted)
            self.assertLessEqual(set(ends), set(CODES.values()))
            for code in ends:
                self.assertLessEqual(ends[code], seen[code])  # some ended before they were looked at
            for calls in both:
                calls.connection.close()


if __name__ == "__main__":
    unittest.main()
