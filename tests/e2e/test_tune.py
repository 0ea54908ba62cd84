"""`fusewired tune`: what it measures is kept, read by what starts next, and decides what `fusion: auto` does."""
import json
import os
import resource
import subprocess
import tempfile
import unittest

from harness.daemon import Daemon, daemon_path, sanitized
from harness.run import ROOT

BLOCK = os.path.join(ROOT, "tests", "e2e", "models", "block.yaml")
FIELDS = {"read", "triad", "copy", "write", "cache", "vector", "reduced", "special", "special_16", "softmax", "epilogue",
          "attention_fp32", "epilogue_fp32", "finish", "attention_finish", "fused_product", "launch_us",
          "product_fp32", "product_fp16", "product_bf16"}
# The first product of the block, with what may be in its epilogue. The block is planned for 256 rows.
SHAPE = ["96", "48", "128", "fp32", "fp32", "bias,gelu"]  # columns, K, rows: speaks for plans of 64 to 256 rows


class TuneTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        cls.settings = os.path.join(cls.folder, "server.yaml")
        with open(cls.settings, "w") as file:
            json.dump({"device": {"kind": "cpu", "threads": 1, "cache": cls.folder}}, file)
        cls.tuned = cls.run_it("tune", "--quick", "--config", cls.settings, BLOCK)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @staticmethod
    def run_it(*arguments, **options):
        return subprocess.run([daemon_path(), *arguments], capture_output=True, text=True, timeout=300, errors="replace",
                              **options)

    def path(self):
        names = [name for name in os.listdir(self.folder) if name.endswith(".rates")]
        self.assertEqual(len(names), 1, names)
        return os.path.join(self.folder, names[0])

    def explained(self):
        done = self.run_it("explain", BLOCK, "--config", self.settings, "--format", "json", "--fusion", "auto", "--tokens", "32")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr

    def keep(self, text):
        """What is in the file meanwhile; put back at the end."""
        with open(self.path()) as file:
            self.addCleanup(self.write, file.read())
        self.write(text)

    def write(self, text):
        with open(self.path(), "w") as file:
            file.write(text)

    def test_every_constant_and_shape_is_measured_and_kept(self):
        self.assertEqual(self.tuned.returncode, 0, self.tuned.stderr)
        self.assertIn(f"kept in {self.path()}", self.tuned.stdout)
        for words in ("GB/s: read", "GFLOP/s: products fp32", "us a step", "fused us"):
            self.assertIn(words, self.tuned.stdout)
        with open(self.path()) as file:
            first, *lines = file.read().splitlines()
        self.assertEqual(first, "fusewire rates 7")
        words = [line.split() for line in lines]
        values = {name: float(rest[0]) for name, *rest in words if name != "shape"}
        self.assertEqual(set(values), FIELDS)
        gpu = {"attention_fp32", "epilogue_fp32"}  # 0: as in any dtype
        self.assertTrue(all(value > 0 or name in gpu for name, value in values.items()), values)
        shapes = [rest for name, *rest in words if name == "shape"]
        self.assertIn(SHAPE, [shape[:6] for shape in shapes])
        self.assertTrue(all(float(us) > 0 for shape in shapes for us in shape[6:]), shapes)

    def test_what_starts_next_predicts_by_it(self):
        with open(self.path()) as file:
            copy = next(float(line.split()[1]) for line in file if line.startswith("copy "))
        found, _ = self.explained()
        self.assertTrue(found["device"]["measured"])
        self.assertAlmostEqual(found["device"]["copy_bytes_per_s"] / copy, 1, 4)

    def test_a_measured_shape_decides(self):
        with open(self.path()) as file:
            lines = file.read().splitlines()
        others = [line for line in lines if line.split()[:7] != ["shape", *SHAPE]]
        for fused_us, apart_us in ((20, 10), (10, 20)):
            self.keep("\n".join(others + [" ".join(["shape", *SHAPE, str(fused_us), str(apart_us)])]) + "\n")
            found, _ = self.explained()
            gelu = next(node["id"] for node in found["nodes"] if node["op"] == "gelu")
            edge = next(edge for edge in found["edges"] if edge["to"] == gelu)
            self.assertEqual(edge["fused"], fused_us < apart_us, edge)

    def test_a_broken_file_is_left_aside(self):
        for text in ("fusewire rates 1\ncopy 1e10\n", "fusewire rates 6\n", "fusewire rates 7\ncopy 1e10\n", "\0" * 5000, ""):
            self.keep(text)
            found, errors = self.explained()
            self.assertFalse(found["device"]["measured"], text[:40])
            self.assertIn("left aside", errors)
        with Daemon([BLOCK], {"device": {"kind": "cpu", "threads": 1, "cache": self.folder}}) as daemon:
            self.assertIn("left aside", daemon.log())

    @unittest.skipIf(sanitized(), "sanitizers take more address space than any limit leaves")
    def test_what_no_memory_holds_takes_nothing_from_the_rest(self):
        with tempfile.TemporaryDirectory() as folder:
            wide = [os.path.join(folder, f"{name}.yaml") for name in ("wide", "wider")]
            settings = os.path.join(folder, "server.yaml")
            for path in wide:
                with open(path, "w") as file:
                    file.write(f"name: {os.path.basename(path)[:-5]}\n"
                               "weights: {synthetic: {}}\nbatch: {max_tokens: 512}\n"
                               "inputs: [{name: x, dtype: fp32, shape: [batch, 8]}]\ngraph:\n"
                               "  - linear: {weights: w, features: 1000000}\n  - gelu: {out: y}\noutputs: [y]\n")
            with open(settings, "w") as file:
                json.dump({"device": {"kind": "cpu", "threads": 1, "cache": folder}}, file)
            most = 1536 << 20  # 512 rows want 2 GB
            done = self.run_it("tune", "--quick", "--config", settings, *wide, BLOCK,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("error: model wide: no memory for an arena of", done.stderr)
            self.assertIn("model wider: no memory for an arena of", done.stderr)
            (name,) = [name for name in os.listdir(folder) if name.endswith(".rates")]
            with open(os.path.join(folder, name)) as file:
                shapes = [line.split()[1:7] for line in file if line.startswith("shape ")]
        self.assertIn(SHAPE, shapes)
        self.assertIn(["1000000", "8", "32", "fp32", "fp32", "bias,gelu"], shapes)

    def test_wrong_usage(self):
        for words in (["tune", "--quick", "/nowhere.yaml"], ["tune", "--quik"], ["--quick", BLOCK],
                      ["tune", "--config", "/nowhere.yaml"]):
            done = self.run_it(*words)
            self.assertEqual(done.returncode, 2, f"{words}: {done.stderr}")
            self.assertTrue(done.stderr.strip(), words)


if __name__ == "__main__":
    unittest.main()
