"""`fusewired explain` and `fusewire explain` say the same, any gRPC client can ask, and what cannot be explained is an error
with a reason."""
import json
import os
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml

import grpc
from harness import device, processor, protobuf_bytes as pb, tiny_bert
from harness.daemon import Daemon, client_path, daemon_path
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
INFERENCE = "inference.GRPCInferenceService"
# As many operations as a daemon explains, hardly any work in each.
DEEP = """
name: deep
weights: {synthetic: {seed: 1, scale: 0.02}}
fusion: ab
max_seqlen: 64
batch: {max_tokens: 64}
inputs:
  - {name: input_ids, dtype: int64, shape: [batch, seq]}
  - {name: attention_mask, dtype: int64, shape: [batch, seq], role: mask, optional: true}
graph:
  - embedding: {in: input_ids, weights: words, rows: 16, features: 32, out: x}
  - repeat:
      times: 48
      as: i
      body:
        - encoder_layer: {weights: "layer.{i}", heads: 1, hidden: 32, eps: 1.0e-12, out: "layer.{i}"}
outputs:
  - {name: y, from: layer.47}
"""


class ExplainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        cls.model = tiny_bert.write(cls.folder)
        cls.settings = os.path.join(cls.folder, "server.yaml")
        with open(cls.settings, "w") as file:
            json.dump({**device.settings(), "models": [cls.model]}, file)
        # Rates that another test measures meanwhile must not come between the two.
        cls.environment = {**os.environ, "XDG_CACHE_HOME": cls.folder}
        deep = os.path.join(cls.folder, "deep.yaml")
        with open(deep, "w") as file:
            file.write(DEEP)
        cls.daemon = Daemon([cls.model, f"{MODELS}/block.yaml", deep], environment=cls.environment).start()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        cls.temporary.cleanup()

    def ask(self, *arguments):
        return subprocess.run([client_path(), "explain", *arguments, "--url", self.daemon.address], capture_output=True,
                              text=True, timeout=60)

    def file(self, *arguments):
        return subprocess.run([daemon_path(), "explain", *arguments], capture_output=True, text=True, timeout=60,
                              env=self.environment)

    def test_daemon_and_file_say_the_same(self):
        for extra in ([], ["--format", "json", "--tokens", "40", "--seqs", "3"], ["--format", "svg", "--fusion", "auto"]):
            asked, read = self.ask("tiny", *extra), self.file("tiny", "--config", self.settings, *extra)
            self.assertEqual((asked.returncode, read.returncode), (0, 0), asked.stderr + read.stderr)
            self.assertEqual(asked.stdout, read.stdout)

    def test_json_and_svg_are_what_they_claim(self):
        found = json.loads(self.file(self.model, "--format", "json", "--tokens", "24", "--seqs", "2").stdout)
        self.assertEqual(found["batch"], {"tokens": 24, "sequences": 2, "longest": 12, "sum_of_squares": 288})
        fused, unfused = found["plans"]["fused"]["total"], found["plans"]["unfused"]["total"]
        self.assertLess(fused["kernels"], unfused["kernels"])
        self.assertLess(fused["read_bytes"] + fused["write_bytes"], unfused["read_bytes"] + unfused["write_bytes"])
        path = os.path.join(self.folder, "plan.svg")
        done = self.file(self.model, "--format", "svg", "--output", path)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertEqual(xml.parse(path).getroot().tag, "{http://www.w3.org/2000/svg}svg")

    def test_bf16_is_no_quicker_where_it_is_widened(self):
        done = self.file(self.model, "--format", "json", "--device", "cpu")
        rates = json.loads(done.stdout)["device"]["product_flops_per_s"]
        self.assertGreater(rates["fp32"], 0)
        self.assertEqual(rates["bf16"] > rates["fp32"], processor.has_bf16())

    def test_the_last_cache_is_what_the_kernel_says(self):
        path = "/sys/devices/system/cpu/cpu0/cache/index3/size"
        if not os.path.exists(path):
            self.skipTest(f"no {path}")
        with open(path) as file:
            size = file.read().strip()
        done = self.file(self.model, "--format", "json", "--device", "cpu")
        self.assertEqual(json.loads(done.stdout)["device"]["cache_bytes"], int(size.removesuffix("K")) << 10)

    def test_bytes_are_those_that_a_reply_is_charged(self):
        """A request that is alone in its batch is charged what explain says of that batch."""
        found = json.loads(self.ask("block", "--format", "json", "--tokens", "3", "--fusion", "on").stdout)
        reply = subprocess.run([client_path(), "infer", "--model", "block", "--batch", "3", "--fusion", "on", "--url",
                                self.daemon.address], capture_output=True, text=True, timeout=60)
        self.assertEqual(reply.returncode, 0, reply.stderr)
        cost = {words[0]: words[1] for words in map(str.split, reply.stdout.splitlines()) if len(words) == 2}
        total = found["plans"]["fused"]["total"]
        self.assertEqual(int(cost["hbm_read_bytes"]), total["read_bytes"])
        self.assertEqual(int(cost["hbm_write_bytes"]), total["write_bytes"])
        unfused = found["plans"]["unfused"]["total"]
        self.assertEqual(int(cost["hbm_unfused_bytes"]), unfused["read_bytes"] + unfused["write_bytes"])

    def test_a_foreign_client(self):
        with grpc.insecure_channel(self.daemon.address) as channel:
            call = channel.unary_unary("/fusewire.v1.Fusewire/Explain")
            reply = dict(pb.fields(call(pb.chunk(1, "tiny") + pb.number(5, 1), timeout=30)))
            self.assertEqual((reply[1], reply[3]), (b"tiny", b"application/json"))
            self.assertEqual(json.loads(reply[4])["schema"], "fusewire.explain/1")
            for request, code in ((pb.chunk(1, "nobody"), grpc.StatusCode.NOT_FOUND),
                                  (pb.chunk(1, "tiny") + pb.number(5, 9), grpc.StatusCode.INVALID_ARGUMENT),
                                  (pb.chunk(1, "tiny") + pb.number(3, 1 << 40), grpc.StatusCode.INVALID_ARGUMENT),
                                  (pb.chunk(1, "tiny") + bytes(5000), grpc.StatusCode.INVALID_ARGUMENT)):
                with self.assertRaises(grpc.RpcError) as raised:
                    call(request, timeout=30)
                self.assertEqual(raised.exception.code(), code)

    def test_no_loop_waits_for_an_explanation(self):
        """Eight explanations of the largest model that there may be, and behind them on the same connection, so the same loop,
        a question that takes no time: its answer is not the last. All are right, and a ninth is refused."""
        finished = []
        with grpc.insecure_channel(self.daemon.address) as channel:
            explain, live = channel.unary_unary("/fusewire.v1.Fusewire/Explain"), channel.unary_unary(f"/{INFERENCE}/ServerLive")
            live(b"", timeout=30)
            calls = [explain.future(pb.chunk(1, "deep"), timeout=60) for _ in range(9)]
            calls.append(live.future(b"", timeout=60))
            for number, call in enumerate(calls):
                call.add_done_callback(lambda _, number=number: finished.append(number))
            codes = [call.code() for call in calls]  # waits
            self.assertEqual(codes[9], grpc.StatusCode.OK)
            self.assertEqual(set(codes[:8]), {grpc.StatusCode.OK}, codes)
            self.assertIn(codes[8], (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OK))
            documents = {bytes(dict(pb.fields(call.result()))[4]) for call in calls[:8]}
            self.assertEqual(len(documents), 1)
        deadline = time.monotonic() + 30
        while len(finished) < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(len(finished), 10)
        self.assertLess(finished.index(9), finished.index(7), finished)

    def test_a_cancelled_explanation_leaves_room_for_another(self):
        with grpc.insecure_channel(self.daemon.address) as channel:
            explain = channel.unary_unary("/fusewire.v1.Fusewire/Explain")
            for _ in range(4):
                for call in [explain.future(pb.chunk(1, "deep"), timeout=60) for _ in range(8)]:
                    call.cancel()
            deadline = time.monotonic() + 30
            while True:
                try:
                    explain(pb.chunk(1, "tiny"), timeout=30)
                    break
                except grpc.RpcError as error:  # the cancelled ones are still on their way out
                    self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.01)

    def test_wrong_usage_is_exit_code_2_with_a_reason(self):
        for arguments, word in (([], "which model"), (["nowhere.yaml"], "nowhere.yaml"), ([self.model, "--format", "pdf"], "pdf"),
                                ([self.model, "--tokens", "0"], "--tokens"), ([self.model, "--tokens"], "needs a value"),
                                ([self.model, "--device", "tpu"], "tpu"), ([self.model, "--fusion", "off"], "--fusion"),
                                ([self.model, self.model], "one model"), ([self.model, "--nonsense"], "--nonsense"),
                                ([self.model, "--tokns=4"], "--tokns=4; the nearest is --tokens"),
                                ([self.model, "--seqs", "99999"], "sequences"),
                                (["nobody", "--config", self.settings], "nobody"),
                                (["Tinny", "--config", self.settings], "is called Tinny; did you mean tiny")):
            done = self.file(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(word, done.stderr)
        self.assertEqual(self.file("--help").returncode, 0)
        self.assertEqual(self.file(self.model, "--output", "/nowhere/file").returncode, 1)
        self.assertIn("NOT_FOUND", self.ask("nobody").stderr)
        self.assertEqual(self.ask().returncode, 2)
        self.assertEqual(self.ask("tiny", "--format", "pdf").returncode, 2)


if __name__ == "__main__":
    unittest.main()
