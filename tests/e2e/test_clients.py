"""Clients that others wrote, unmodified: grpclib, grpc-go, h2load, Triton's perf_analyzer; other files have grpcio, tritonclient.

`./dev test` puts what is no Python package under .cache/clients; what is not there is skipped."""
import asyncio
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from harness import protobuf_bytes as pb
from harness.daemon import Daemon, sanitized
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
CLIENTS = os.path.join(ROOT, ".cache", "clients")
SERVICE = "/inference.GRPCInferenceService/"


def echo_request(rows=1, name="echo"):
    data = os.urandom(1024 * rows)
    return pb.infer_request(name, [pb.tensor("x", "FP32", [1, rows, 256])], [data]), data


def need(name, path):
    if not path or not os.path.exists(path):
        raise unittest.SkipTest(f"{name} is not here")
    return path


class ClientsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon([f"{MODELS}/echo.yaml", f"{MODELS}/block.yaml"], {
            "limits": {"message_bytes": 128 << 20, "connection_bytes": 512 << 20}}).start()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def run_client(self, command, seconds=200, environment=None):
        environment = {**os.environ, **(environment or {})}
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    # ---- the example that is shipped -------------------------------------------------------------
    def test_the_example_without_a_sentence_says_so(self):
        for text in ("", "  \n\n"):
            done = subprocess.run([sys.executable, os.path.join(ROOT, "examples", "embed.py"), "--server", self.daemon.address,
                                   "--tokenizer", "/nowhere.json"], input=text, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("no sentence to embed", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    # ---- an independent stack in Python ----------------------------------------------------------
    def test_grpclib(self):
        try:
            from grpclib.client import Channel
            from grpclib.const import Cardinality, Status
            from grpclib.encoding.base import CodecBase
            from grpclib.exceptions import GRPCError
        except ImportError:
            raise unittest.SkipTest("grpclib is not here") from None

        class Raw(CodecBase):
            __content_subtype__ = "proto"

            def encode(self, message, message_type):
                return message

            def decode(self, data, message_type):
                return data

        async def call(channel, method, message, **options):
            async with channel.request(SERVICE + method, Cardinality.UNARY_UNARY, bytes, bytes, **options) as stream:
                await stream.send_message(message, end=True)
                return await stream.recv_message()

        async def cases():
            channel = Channel("127.0.0.1", self.daemon.grpc_port, codec=Raw())
            try:
                self.assertEqual(await call(channel, "ServerLive", b""), b"\x08\x01")
                for rows in (1, 64, 1024, 4000):
                    request, data = echo_request(rows)
                    metadata = {"x-text": "a", "x-b-bin": b"\0\xff"}
                    self.assertIn(data, await call(channel, "ModelInfer", request, metadata=metadata))
                pairs = [echo_request(1 + i % 9) for i in range(200)]
                answers = await asyncio.gather(*(call(channel, "ModelInfer", request) for request, _ in pairs))
                self.assertTrue(all(data in answer for answer, (_, data) in zip(answers, pairs)))
                for method, message, status, words in (
                        ("ModelInfer", echo_request(1, "naïve % \n 模型")[0], Status.NOT_FOUND, "naïve % ? 模型"),
                        ("Nothing", b"", Status.UNIMPLEMENTED, "Nothing"), ("ModelInfer", b"\xff", None, "")):
                    with self.assertRaises(GRPCError) as raised:
                        await call(channel, method, message)
                    self.assertIn(raised.exception.status, (status,) if status else (Status.INTERNAL, Status.INVALID_ARGUMENT))
                    self.assertIn(words, raised.exception.message)
                async with channel.request(SERVICE + "ModelInfer", Cardinality.UNARY_UNARY, bytes, bytes) as stream:
                    await stream.send_request()
                    await stream.cancel()
                self.assertEqual(await call(channel, "ServerReady", b""), b"\x08\x01")
            finally:
                channel.close()

        asyncio.run(cases())

    # ---- Go --------------------------------------------------------------------------------------
    def test_grpc_go(self):
        program = need("grpc-go", f"{CLIENTS}/grpc_go")
        output = self.run_client([program, self.daemon.address])
        self.assertEqual(len(re.findall(r"^ok ", output, re.M)), 10, output)

    # ---- load generators -------------------------------------------------------------------------
    def test_h2load(self):
        program, calls = need("h2load", shutil.which("h2load")), 1000 if sanitized() else 5000
        request, _ = echo_request(4)
        before = self.daemon.metrics()
        with tempfile.NamedTemporaryFile() as body:
            body.write(b"\0" + struct.pack(">I", len(request)) + request)
            body.flush()
            output = self.run_client([program, "-n", str(calls), "-c", "10", "-m", "20", "-d", body.name, "-H",
                                      "content-type: application/grpc", "-H", "te: trailers",
                                      f"http://{self.daemon.address}{SERVICE}ModelInfer"])
        self.assertIn(f"{calls} succeeded, 0 failed, 0 errored, 0 timeout", output)
        metrics = self.daemon.metrics()  # it does not look at grpc-status
        ok = [name for name in metrics if name.startswith("fusewire_infer_finished_total{")
              and 'model="echo"' in name and '"OK"' in name]
        self.assertTrue(ok)
        self.assertEqual(sum(metrics[name] - before[name] for name in ok), calls)

    @unittest.skipIf(sanitized(), "it measures, and is run on the release build")
    def test_perf_analyzer(self):
        program = need("perf_analyzer", f"{CLIENTS}/perf_analyzer")
        for model, more, levels in (("echo", ["--shape", "x:16,256", "--concurrency-range", "1:3:2"], ["1", "3"]),
                                    ("block", ["-b", "4", "--concurrency-range", "2"], ["2"])):
            with self.subTest(model):
                output = self.run_client(
                    [program, "-u", self.daemon.address, "-i", "grpc", "-m", model, *more, "--measurement-mode", "count_windows",
                     "--measurement-request-count", "100", "-s", "10000", "-r", "5"],
                    environment={"LD_LIBRARY_PATH": CLIENTS})
                rates = re.findall(r"^Concurrency: (\d+), throughput: ([\d.]+) infer/sec", output, re.M)
                self.assertEqual([level for level, _ in rates], levels, output)
                self.assertGreater(min(float(rate) for _, rate in rates), 1)
                self.assertRegex(output, r"Server: \s+Inference count: [1-9]")  # it reads our statistics
                self.assertRegex(output, r"compute infer \d+ usec")


if __name__ == "__main__":
    unittest.main()
