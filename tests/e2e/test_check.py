"""`fusewired --check`: every fault of a server file, a model file or a weights file has its place and ends with exit code 2."""
import os
import re
import struct
import subprocess
import tempfile
import unittest

from harness import safetensors_file, tiny_bert
from harness.daemon import READY_SECONDS, check, daemon_path
from harness.run import ROOT

BLOCK = """name: block
weights:
  synthetic: {seed: 7, scale: 0.05}
inputs:
  - {name: x, dtype: fp32, shape: [batch, 48]}
graph:
  - mlp: {weights: mlp, hidden: 96, out: y}
outputs:
  - y
"""
# name -> (old, new, line of the fault or None, words in the message)
MODEL_FAULTS = {
    "unknown key": ("name: block", "nmae: block", 1, ["nmae", "name"]),
    "unknown key of a step": ("hidden: 96", "hiden: 96", 7, ["hiden", "hidden"]),
    "unknown op": ("- mlp:", "- mlpp:", 7, ["mlpp", "mlp"]),
    "duplicate key": ("weights:\n", "name: again\nweights:\n", 2, ["name"]),
    "wrong type": ("hidden: 96", "hidden: lots", 7, ["hidden", "lots"]),
    "absurd size": ("hidden: 96", "hidden: 1000000000", 7, ["hidden", "1000000000"]),
    "number past 64 bits": ("hidden: 96", "hidden: 99999999999999999999", 7, ["hidden"]),
    "batch to fuse for past the largest": ("weights:\n", "fusion_tokens: 5000\nweights:\n", 2,
                                           ["fusion_tokens: 5000", "batch.max_tokens is 2048"]),
    "zero": ("hidden: 96", "hidden: 0", 7, ["hidden"]),
    "negative": ("hidden: 96", "hidden: -1", 7, ["hidden"]),
    "dtype of another word": ("dtype: fp32", "dtype: fp33", 5, ["fp33", "fp32"]),
    "output that nobody makes": ("  - y\n", "  - z\n", 9, ["z"]),
    "input twice": ("graph:", "  - {name: x, dtype: fp32, shape: [batch, 48]}\ngraph:", 6, ["x"]),
    "no graph": ("graph:\n  - mlp: {weights: mlp, hidden: 96, out: y}\n", "", None, ["graph"]),
    "no inputs": ("inputs:\n  - {name: x, dtype: fp32, shape: [batch, 48]}\n", "", None, ["inputs"]),
    "weights file that is not there": ("synthetic: {seed: 7, scale: 0.05}", "file: nowhere.safetensors", 3,
                                       ["nowhere.safetensors"]),
    "a tab": ("  - y\n", "\t- y\n", None, []),
    "not closed": ("{seed: 7, scale: 0.05}", "{seed: 7, scale: 0.05", None, []),
    "a template without quotes": ("weights: mlp, hidden", "weights: mlp.{i}, hidden", 7, ["needs quotes"]),
    "heads that do not divide": ("mlp: {weights: mlp, hidden: 96, out: y}", "attention_block: {weights: a, heads: 5, out: y}", 7,
                                 ["5", "48"]),
    "zero heads": ("mlp: {weights: mlp, hidden: 96, out: y}", "attention_block: {weights: a, heads: 0, out: y}", 7, ["heads"]),
    "eps that is not a number": ("mlp: {weights: mlp, hidden: 96, out: y}", "layer_norm: {weights: n, eps: .nan, out: y}", 7,
                                 ["eps"]),
    "scale that is infinite": ("mlp: {weights: mlp, hidden: 96, out: y}", "scale: {factor: .inf, out: y}", 7, ["factor"]),
}
SERVER_FAULTS = {
    "unknown section": ("sever: {listen: '127.0.0.1:0'}\n", 1, ["sever", "server"]),
    "unknown key": ("server:\n  lisen: '127.0.0.1:0'\n", 2, ["lisen", "listen"]),
    "wrong type": ("limits:\n  connections: many\n", 2, ["connections", "many"]),
    "out of range": ("limits:\n  connections: 0\n", 2, ["connections", "0"]),
    "duplicate key": ("limits:\n  connections: 5\n  connections: 6\n", 3, ["connections"]),
    "word that is none": ("log: {level: loud}\n", 1, ["level", "loud", "debug"]),
    "a list where a map is": ("limits: [1, 2]\n", 1, ["limits"]),
    "alias bomb": ("a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
        for old, new in zip("abcdefgh", "bcdefghi")), None, []),
    # A label of 64 letters is no name, whatever a resolver knows.
    "host that does not resolve": (f"server:\n  listen: {'x' * 64}.test:8001\n", 2, ["server.listen", "xxx.test", "host"]),
    "window longer than its period": ("audit:\n  mode: sampled\n  window: 2000\n", 2,
                                      ["audit.window (2000 ms)", "audit.period (1000 ms)"]),
    "Unix path that is too long": (f"server:\n  unix: /{'x' * 107}\n", 2, ["server.unix", "108 bytes", "at most 107"]),
    "repository that is not there": ("server: {repository: /nowhere/models}\n", 1,
                                     ["server.repository", "/nowhere/models", "No such file"]),
    "repository that is no folder": ("server: {repository: /dev/null}\n", 1, ["server.repository", "no folder"]),
    "deep nesting": ("server: " + "[" * 2000 + "]" * 2000 + "\n", None, []),
}


class CheckTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = self.temporary.name

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return path

    def assert_refused(self, arguments, path, line, words):
        code, output = check(arguments)
        self.assertEqual(code, 2, output)
        self.assertNotIn("Sanitizer", output)
        self.assertNotIn("ok:", output)
        where = [re.search(re.escape(os.path.basename(path)) + r":(\d+):(\d+)", text) for text in output.splitlines()]
        where = [match for match in where if match]
        if line is not None:
            self.assertIn(line, [int(match.group(1)) for match in where], output)
        for word in words:
            self.assertIn(word, output)
        return output

    # ---- what is right ---------------------------------------------------------------------------
    def test_everything_shipped_is_right(self):
        folder = os.path.join(ROOT, "config", "models")
        models = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.startswith("minilm")]
        for arguments in (["--config", os.path.join(ROOT, "config", "server.yaml")], *[[model] for model in models]):
            with self.subTest(arguments):
                code, output = check(arguments)
                self.assertEqual(code, 0, output)

    def test_a_right_model_passes(self):
        code, output = check([self.write("block.yaml", BLOCK)])
        self.assertEqual(code, 0, output)
        code, output = check([tiny_bert.write(self.folder)])
        self.assertEqual(code, 0, output)

    def test_a_step_that_no_output_needs_is_right_and_told(self):
        code, output = check([self.write("block.yaml", BLOCK.replace("outputs:", "  - relu: {in: x, out: idle}\noutputs:"))])
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r'block\.yaml:8: no output needs "idle"')

    # ---- model and server files ------------------------------------------------------------------
    def test_what_is_printed_must_arrive(self):
        model = self.write("block.yaml", BLOCK)
        for arguments in (["--check", model], ["--help"], ["--version"], ["--print-config"]):
            for to in (">/dev/full", ">&-"):
                with self.subTest(arguments=arguments, to=to):
                    done = subprocess.run(["sh", "-c", f'exec "$@" {to}', "sh", daemon_path(), *arguments],
                                          capture_output=True, text=True, timeout=READY_SECONDS)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn("error: standard output cannot be written", done.stderr)

    def test_every_fault_of_a_model_file_has_its_place(self):
        for name, (old, new, line, words) in MODEL_FAULTS.items():
            with self.subTest(name):
                self.assertIn(old, BLOCK)
                path = self.write("fault.yaml", BLOCK.replace(old, new, 1))
                self.assert_refused([path], path, line, words)

    def test_all_faults_are_told_at_once(self):
        text = BLOCK.replace("name: block", "nmae: block").replace("hidden: 96", "hidden: lots")
        text = text.replace("inputs:", "batch: {max_tokens: 0}\ninputs:")
        path = self.write("faults.yaml", text)
        output = self.assert_refused([path], path, 1, ["nmae", "lots", "max_tokens"])
        self.assertGreaterEqual(len(re.findall(r"faults\.yaml:\d+:\d+", output)), 3)

    def test_a_bad_input_is_no_mistake_of_the_graph(self):
        folder, broken = os.path.join(ROOT, "config", "models"), 0
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name)) as file:
                text = file.read().replace("file: ../../.cache", f"file: {ROOT}/.cache")
            for entry in re.findall(r"^  - \{name: .*\}$", text.split("\ngraph:")[0], re.M):
                line = text[:text.index(entry)].count("\n") + 1
                for old, new in (("dtype: ", "dtype: x"), ("[batch", "[batsch"), ("name: ", "nmae: "),
                                 ("shape: [", "shape: [0, "), (entry, "  - 5"), ("}", ", role: maks}")):
                    with self.subTest(f"{name}: {entry} with {new}"):
                        path = self.write(name, text.replace(entry, entry.replace(old, new, 1)))
                        output = self.assert_refused([path], path, line, ["inputs["])
                        # MiniLM's weights may not be here.
                        told = re.findall(re.escape(name) + r":(\d+):\d+: (?!weights)", output)
                        self.assertEqual(set(told), {str(line)}, output)
                    broken += 1
        self.assertGreater(broken, 40)

    def test_every_fault_of_a_server_file_has_its_place(self):
        for name, (text, line, words) in SERVER_FAULTS.items():
            with self.subTest(name):
                path = self.write("server.yaml", text)
                self.assert_refused(["--config", path], path, line, words)

    def test_the_two_kinds_of_files_are_told_apart(self):
        model, settings = self.write("model.yaml", BLOCK), self.write("settings.yaml", "server: {listen: ':0'}\nmodels: []\n")
        output = self.assert_refused(["--config", model], model, 1, ["a model file", "without --config"])
        self.assertNotIn("unknown key", output)
        output = self.assert_refused([settings], settings, 1, ["settings", "--config"])
        self.assertNotIn("unknown key", output)

    def test_an_endpoint_that_is_no_url_is_told_once(self):
        for url in ("foo", "http://", "http://-", "http://:4318/v1/traces", "http://a:0/v1/traces", "http:///v1/traces"):
            with self.subTest(url):
                path = self.write("server.yaml", f"trace: {{endpoint: '{url}'}}\n")
                self.assertEqual(self.assert_refused(["--config", path], path, 1, ["trace.endpoint"]).count("endpoint"), 1)

    def test_no_mistake_of_the_settings_hides_another(self):
        """Nor those of the models that they list."""
        models = [self.write(f"{name}.yaml", BLOCK.replace("hidden: 96", f"hidden: {name}")) for name in ("one", "two")]
        text = ("tls: {certificate: /nowhere.pem, key: /nowhere.key, client_ca: /nowhere.ca}\n"
                "auth: {token_file: /nowhere.tokens}\ntrace: {endpoint: 'http://-', ca: /nowhere.authorities}\n"
                f"device: {{kind: cuda, gpus: '15'}}\nmodels: [{', '.join(models)}]\n")
        path = self.write("server.yaml", text)
        words = ["/nowhere.pem", "/nowhere.key", "/nowhere.ca:", "/nowhere.tokens", "http://-", "/nowhere.authorities",
                 "device", "one.yaml:7", "two.yaml:7"]
        output = self.assert_refused(["--config", path], path, 1, words)
        self.assertIn("9 errors", output)

    def test_a_path_that_is_empty(self):
        code, output = check([""])
        self.assertEqual(code, 2)
        self.assertIn("error: --model: the path is empty", output)

    def test_things_that_are_no_files(self):
        fifo = os.path.join(self.folder, "fifo")
        os.mkfifo(fifo)
        for path in (os.path.join(self.folder, "nothing.yaml"), self.folder, fifo, "/dev/zero"):
            with self.subTest(path):
                self.assert_refused([path], path, None, [os.path.basename(path)])

    def test_files_that_are_not_text(self):
        contents = {"empty": b"", "zeros": bytes(4096), "binary": bytes(range(256)) * 8, "big": b"a: 1\n" * 4_000_000}
        for name, content in contents.items():
            with self.subTest(name):
                path = self.write("odd.yaml", content)
                self.assert_refused([path], path, None, [])

    # ---- weights ---------------------------------------------------------------------------------
    def tensors(self):
        arrays = tiny_bert.weights()
        model = tiny_bert.write(self.folder, arrays=arrays)
        with open(os.path.join(self.folder, "model.safetensors"), "rb") as file:
            content = file.read()
        (header_bytes,) = struct.unpack("<Q", content[:8])
        return model, arrays, content[8:8 + header_bytes], content[8 + header_bytes:]

    def rewrite(self, header, data, declared=None):
        safetensors_file.write_raw(os.path.join(self.folder, "model.safetensors"), header, data, declared)

    def test_hostile_weights_files(self):
        model, _, header, data = self.tensors()
        first = re.search(rb'"data_offsets": \[0, (\d+)\]', header)
        end = int(first.group(1))
        places = {
            "header longer than the file": (header, data, len(header) + len(data) + 1),
            "header of 2^63 bytes": (header, data, 1 << 63),
            "header of 2^64-1 bytes": (header, data, (1 << 64) - 1),
            "header of 0 bytes": (header, data, 0),
            "data cut short": (header, data[:-1], None),
            "no data": (header, b"", None),
            "header cut short": (header[:len(header) // 2], data, None),
            "not JSON": (b"x" * 100, data, None),
            "JSON of another form": (b"[1, 2, 3]", data, None),
            "deep JSON": (b"[" * 100000, data, None),
            "offsets that go back": (header.replace(first.group(0), b'"data_offsets": [%d, 0]' % end), data, None),
            "offsets past the end": (header.replace(first.group(0), b'"data_offsets": [0, 99999999999]'), data, None),
            "negative offsets": (header.replace(first.group(0), b'"data_offsets": [-%d, 0]' % end), data, None),
            "offsets past 64 bits": (header.replace(first.group(0), b'"data_offsets": [0, 18446744073709551617]'), data, None),
            "offsets that do not fit the shape": (header.replace(first.group(0), b'"data_offsets": [0, %d]' % (end - 4)),
                                                  data, None),
            "odd offset": (header.replace(first.group(0), b'"data_offsets": [1, %d]' % (end + 1)), data, None),
            "shape that overflows": (re.sub(rb'"shape": \[\d+, \d+\]', b'"shape": [4611686018427387904, 4]', header, count=1),
                                     data, None),
            "negative shape": (re.sub(rb'"shape": \[\d+, \d+\]', b'"shape": [-90, -48]', header, count=1), data, None),
            "unknown dtype": (header.replace(b'"F32"', b'"F31"', 1), data, None),
            "the same tensor twice": (header[:-1] + b", " + header[1:], data, None),
        }
        for name, (new_header, new_data, declared) in places.items():
            with self.subTest(name):
                self.rewrite(new_header, new_data, declared)
                self.assert_refused([model], model, None, ["model.safetensors"])
        for size in (0, 4, 7, 8, 9):
            with self.subTest(f"file of {size} bytes"):
                with open(os.path.join(self.folder, "model.safetensors"), "wb") as file:
                    file.write(bytes(size))
                self.assert_refused([model], model, None, ["model.safetensors"])

    def test_missing_and_misshapen_weights_are_named(self):
        name = "encoder.layer.1.attention.self.key.weight"
        arrays = tiny_bert.weights()
        del arrays[name]
        model = tiny_bert.write(self.folder, arrays=arrays)
        self.assert_refused([model], model, None, [name])
        arrays = tiny_bert.weights()
        arrays[name] = arrays[name][:-1]
        model = tiny_bert.write(self.folder, arrays=arrays)
        self.assert_refused([model], model, None, [name, "47", "48"])

    def test_random_damage_to_a_weights_header_never_crashes(self):
        import random

        model, _, header, data = self.tensors()
        generator = random.Random(5)
        for i in range(40):
            damaged = bytearray(header)
            for _ in range(generator.randint(1, 4)):
                damaged[generator.randrange(len(damaged))] = generator.randrange(256)
            self.rewrite(bytes(damaged), data)
            code, output = check([model])
            self.assertIn(code, (0, 2), f"seed 5 round {i}: {output}")
