"""Lines of the log: JSON or text, with the request's id and the client's trace, and never too many."""
import json
import os
import time
import unittest

import numpy as np
from harness import triton
from harness.clock import wait_for
from harness.daemon import Daemon
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class LogTest(unittest.TestCase):
    def start(self, **log):
        daemon = Daemon([f"{MODELS}/block.yaml"], {"log": log}).start()
        self.addCleanup(daemon.kill)
        client = triton.connect(daemon)
        self.addCleanup(client.close)
        return daemon, client

    def infer(self, client, width=48, **options):
        try:
            triton.infer(client, "block", {"x": np.zeros((1, width), np.float32)}, **options)
        except triton.InferenceServerException as error:
            return error
        return None

    def test_json_lines_have_the_request_and_its_trace(self):
        daemon, client = self.start(format="json", requests="all")
        self.assertIsNone(self.infer(client, request_id="good \"1\"", headers={"traceparent": TRACE}))
        self.assertIsNotNone(self.infer(client, 47, request_id="bad", headers={"traceparent": TRACE.upper()}))
        good = json.loads(daemon.wait_line('"event":"request"')[0])
        self.assertEqual((good["level"], good["model"], good["version"], good["id"], good["traceparent"], good["status"]),
                         ("info", "block", "1", "good \"1\"", TRACE, "OK"))
        self.assertGreaterEqual(good["total_us"], good["compute_us"])
        self.assertEqual(good["batch_requests"], 1)
        bad = json.loads(daemon.wait_line('"event":"request_failed"')[0])
        self.assertEqual((bad["id"], bad["traceparent"], bad["status"]), ("bad", "", "INVALID_ARGUMENT"))
        self.assertIn("shape", bad["message"])
        daemon.stop()
        for line in daemon.lines:
            if not line.startswith("fusewired ready"):
                json.loads(line)

    def test_text_lines_say_the_same(self):
        daemon, client = self.start(format="text")
        self.assertIsNone(self.infer(client))
        self.infer(client, 47, request_id="a\nb", headers={"traceparent": TRACE})
        line = daemon.wait_line("request_failed")[0]
        self.assertIn("model=block", line)
        self.assertIn("id=a?b", line)
        self.assertIn(f"traceparent={TRACE}", line)
        daemon.stop()
        self.assertFalse([line for line in daemon.lines if " request: " in line])

    def test_many_failures_are_few_lines(self):
        daemon, client = self.start(format="json")
        began = time.monotonic()
        for _ in range(200):
            self.infer(client, 47)
        seconds = time.monotonic() - began
        time.sleep(1.1)
        self.infer(client, 47)

        def lines():
            return [json.loads(line) for line in daemon.wait_line("request_failed")]

        # Each failure is a line, or one of those that the next line says are missing; the last came when lines were allowed.
        wait_for(lambda: len(lines()) + sum(line["suppressed"] for line in lines()) == 201, what=daemon.log)
        self.assertLess(len(lines()), 22 + 10 * (seconds + 2))
        daemon.stop()

    def test_none_means_none(self):
        daemon, client = self.start(requests="none")
        self.infer(client, 47)
        self.infer(client)
        daemon.stop()
        self.assertFalse([line for line in daemon.lines if "request" in line])
