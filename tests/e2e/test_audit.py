"""The live audit from a client's side: what a server says that does not count, and one that is to count and may not be able to.
Where the device has counters that can be read, the figures have to be there."""
import json
import os
import subprocess
import time
import unittest

import grpc
import numpy
from harness import triton
from harness.daemon import Daemon, client_path
from harness.run import ROOT

BLOCK = os.path.join(ROOT, "tests", "e2e", "models", "block.yaml")


def infer(client, **given):
    rows = {"x": numpy.zeros((3, 48), numpy.float32)}
    return triton.parameters(triton.infer(client, "block", rows, parameters=given or None))


def audit_rpc(daemon):
    with grpc.insecure_channel(daemon.address) as channel:
        return channel.unary_unary("/fusewire.v1.Fusewire/Audit")(b"", timeout=30)


def audit_command(daemon, *arguments):
    return subprocess.run([client_path(), "audit", *arguments, "--url", daemon.address], capture_output=True,
                          text=True, timeout=60)


class AuditTest(unittest.TestCase):
    def daemon(self, mode):
        daemon = Daemon([BLOCK], {"audit": {"mode": mode}}).start()
        self.addCleanup(daemon.kill)
        return daemon

    def test_a_server_that_does_not_count_says_so(self):
        daemon = self.daemon("off")
        with triton.connect(daemon) as client:
            with self.assertRaisesRegex(triton.InferenceServerException, "audit.mode: off") as raised:
                infer(client, audit=True)
            self.assertIn("FAILED_PRECONDITION", raised.exception.status())
            self.assertNotIn("audit", infer(client, audit=False))
            with self.assertRaisesRegex(triton.InferenceServerException, "expected a bool") as raised:
                infer(client, audit="yes")
            self.assertIn("INVALID_ARGUMENT", raised.exception.status())
        self.assertIn(b"off", audit_rpc(daemon))
        done = audit_command(daemon)
        self.assertEqual((done.returncode, done.stdout), (0, "audit.mode: off\n"), done.stderr)
        found = json.loads(audit_command(daemon, "block", "--format", "json").stdout)
        self.assertEqual((found["schema"], found["mode"], found["devices"]), ("fusewire.audit/1", "off", []))
        for arguments, code, words in ((["nobody"], 1, "NOT_FOUND"), (["--format", "svg"], 2, "--format"),
                                       (["block", "--model", "tiny"], 2, "beside --model")):
            done = audit_command(daemon, *arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""))
            self.assertIn(words, done.stderr)
        self.assertFalse([name for name in daemon.metrics() if name.startswith("fusewire_audit")])
        daemon.stop()

    def test_a_server_that_is_to_count(self):
        daemon = self.daemon("continuous")
        with triton.connect(daemon) as client:
            until = time.monotonic() + 10
            found = infer(client, audit=True)
            while found["audit"] == "uncalibrated" and time.monotonic() < until:  # a copy of known size comes first
                found = infer(client, audit=True)
            self.assertNotIn("audit", infer(client))
        metrics = daemon.metrics()
        state = [name for name in metrics if name.startswith("fusewire_audit_calibrated{")]
        self.assertEqual(len(state), 1, state)
        if found["audit"] == "refused":
            self.assertNotIn("hbm_read_measured_bytes", found)
            self.assertEqual(len(daemon.wait_line("audit_refused")), 1, daemon.log())
            self.assertEqual(metrics[state[0]], 0)
            self.assertIn(b"refused", audit_rpc(daemon))
        else:
            self.assertEqual(found["audit"], "measured", daemon.log())
            self.assertGreaterEqual(found["hbm_read_measured_bytes"], 0)
            self.assertEqual(metrics[state[0]], 1)
        text, told = audit_command(daemon, "block").stdout, json.loads(audit_command(daemon, "--format", "json").stdout)
        self.assertTrue(text.startswith("audit.mode: continuous, a sample every "), text)
        (device,) = told["devices"]
        self.assertEqual(device["state"], "refused" if found["audit"] == "refused" else "calibrated")
        self.assertIn(f"device {device['device']}: {device['state']}", text)
        self.assertIn(device["reason"], text)
        self.assertEqual({model["model_name"] for model in told["models"]}, {"block"} if told["models"] else set())
        if device["state"] == "calibrated":
            self.assertIn("model block version 1, fusion on", text)
            self.assertGreater(sum(size["batches"] for model in told["models"] for size in model["sizes"]), 0)
        started = time.monotonic()
        daemon.stop()
        self.assertLess(time.monotonic() - started, 20)


if __name__ == "__main__":
    unittest.main()
