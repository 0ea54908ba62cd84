"""Which device serves: a demand that cannot be met ends the start with a reason; `auto` says what it took, everywhere."""
import json
import os
import subprocess
import tempfile
import unittest

import grpc
import tritonclient.grpc as triton
from harness import protobuf_bytes as pb
from harness.daemon import Daemon, daemon_path
from harness.run import ROOT

BLOCK = os.path.join(ROOT, "tests", "e2e", "models", "block.yaml")


def start(settings):
    """A daemon that is expected to end by itself: (exit code, output)."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump({"server": {"listen": "127.0.0.1:0", "admin": ""}, **settings}, file)
        file.flush()
        done = subprocess.run([daemon_path(), "--config", file.name, BLOCK], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def properties(daemon):
    """The bytes of a ModelMetadata reply, whose properties stock clients do not know."""
    with grpc.insecure_channel(daemon.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
        return call(pb.chunk(1, b"block"), timeout=30)


class DeviceTest(unittest.TestCase):
    def daemon(self, device):
        daemon = Daemon([BLOCK], {"device": device}).start()
        self.addCleanup(daemon.kill)
        return daemon

    def test_cuda_without_a_gpu_is_a_start_error_with_the_reason(self):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.addCleanup(os.environ.pop, "CUDA_VISIBLE_DEVICES")
        code, output = start({"device": {"kind": "cuda"}})
        self.assertEqual(code, 1, output)
        self.assertRegex(output, r'error: .*device\.kind: found "cuda", but (this build has no|this machine has no)')

    def test_auto_without_a_gpu_takes_the_cpu_and_says_so(self):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.addCleanup(os.environ.pop, "CUDA_VISIBLE_DEVICES")
        daemon = self.daemon({"kind": "auto"})
        self.assertTrue(any("device_fallback" in line for line in daemon.lines), daemon.log())
        self.assertTrue(any("ready" in line and "device=cpu" in line for line in daemon.lines))
        with triton.InferenceServerClient(daemon.address) as client:
            self.assertIn("fusewire_auto_device_is_cpu", client.get_server_metadata().extensions)
        self.assertRegex(properties(daemon), b"device_fallback.{2,6}(this machine has no|this build has no)")
        self.assertIn(b"device_name", properties(daemon))
        metrics = daemon.metrics()
        self.assertEqual(metrics["fusewire_device_fallback"], 1)
        self.assertTrue(any(name.startswith('fusewire_device_info{device="cpu:0",kind="cpu",name="') for name in metrics))
        self.assertEqual(metrics['fusewire_device_lost{device="cpu:0"}'], 0)
        self.assertEqual(metrics['fusewire_device_queue_requests{device="cpu:0"}'], 0)
        daemon.stop()

    def test_the_cpu_by_name_is_no_second_choice(self):
        daemon = self.daemon({"kind": "cpu"})
        self.assertFalse(any("device_fallback" in line for line in daemon.lines), daemon.log())
        with triton.InferenceServerClient(daemon.address) as client:
            self.assertNotIn("fusewire_auto_device_is_cpu", client.get_server_metadata().extensions)
        self.assertNotIn(b"device_fallback", properties(daemon))
        self.assertEqual(daemon.metrics()["fusewire_device_fallback"], 0)
        daemon.stop()

    def test_gpus_that_are_no_numbers_are_refused_with_their_place(self):
        for gpus in ("a", "0,", ",0", "0,0", "16", "0 1", "-1"):
            code, output = start({"device": {"gpus": gpus}})
            self.assertEqual(code, 2, f"{gpus}: {output}")
            self.assertRegex(output, r"expected numbers of GPUs")


if __name__ == "__main__":
    unittest.main()
