"""The bundled client against the real daemon: what it sends and prints is what a foreign client gets; its exit codes are
honest."""
import csv
import json
import os
import signal
import subprocess
import tempfile
import unittest

import numpy as np
from harness import tiny_bert, triton
from harness.clock import wait_for
from harness.daemon import Daemon, client_path
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        models = [tiny_bert.write(cls.folder), f"{MODELS}/block.yaml", *map(cls.write_block, ("on", "off", "auto")),
                  cls.write_block("ab", "\nab: {shadow: 0.5}")]
        cls.daemon = Daemon(models).start()

    @classmethod
    def write_block(cls, fusion, more=""):
        """block.yaml as block-FUSION."""
        with open(f"{MODELS}/block.yaml") as file:
            text = file.read().replace("name: block", f"name: block-{fusion}").replace("fusion: ab", f"fusion: {fusion}{more}")
        path = f"{cls.folder}/block-{fusion}.yaml"
        with open(path, "w") as file:
            file.write(text)
        return path

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        cls.temporary.cleanup()

    def run_client(self, *arguments, address=None):
        command = [client_path(), arguments[0], "--url", address or self.daemon.address, *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.folder)

    def accepted(self, model):
        return sum(value for key, value in self.daemon.metrics().items()
                   if key.startswith("fusewire_infer_accepted_total") and f'model="{model}"' in key)

    # ---- status, models --------------------------------------------------------------------------
    def test_status_of_a_server_and_of_none(self):
        good = self.run_client("status")
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("SERVING", good.stdout)
        self.assertNotEqual(self.run_client("status", address="127.0.0.1:1").returncode, 0)

    def test_models_with_their_signature(self):
        found = self.run_client("models", "--model", "tiny")
        self.assertEqual(found.returncode, 0, found.stderr)
        for word in ("tiny", "input_ids", "INT64", "last_hidden_state", "sentence_embedding", "FP32"):
            self.assertIn(word, found.stdout)
        self.assertNotEqual(self.run_client("models", "--model", "nobody").returncode, 0)

    def test_models_say_the_mode_of_their_file_and_what_requests_get(self):
        for name, mode, default in (("block", "ab", "on"), ("block-on", "on", "on"), ("block-off", "off", "off"),
                                    ("block-auto", "auto", None)):  # auto runs as what it comes out as
            found = self.run_client("models", "--model", name)
            self.assertIn(f"  fusion = {mode}\n", found.stdout)
            self.assertIn(f"  fusion_default = {default or 'o'}", found.stdout)

    def test_the_model_may_be_a_word(self):
        for arguments in (["models", "block"], ["infer", "--batch", "2", "block"], ["explain", "block", "--tokens", "8"],
                          ["bench", "block", "--requests", "5", "--quiet"]):
            done = self.run_client(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("tiny", self.run_client("models", "block").stdout)
        self.assertIn("tiny", self.run_client("models").stdout)
        for command in ("infer", "bench", "explain"):
            for arguments, words in (([], "which model?"), (["block", "--model", "tiny"], "'block' beside --model tiny"),
                                     (["block", "tiny"], "unexpected argument 'tiny'")):
                done = self.run_client(command, *arguments)
                self.assertEqual(done.returncode, 2)
                self.assertIn(words, done.stderr)
        self.assertEqual(self.run_client("status", "block").returncode, 2)

    def test_every_command_explains_itself(self):
        for command in ("bench", "infer", "status", "models", "explain", "audit"):
            text = self.run_client(command, "--help").stdout
            for words in (f"usage: fusewire {command} ", "--url ADDRESS", "--token-file FILE", "Exit codes: 0"):
                self.assertIn(words, text)
            self.assertNotIn("\\n", text)
            self.assertLess(max(map(len, text.splitlines())), 112)

    # ---- infer -----------------------------------------------------------------------------------
    def test_infer_from_npy_gives_what_triton_gives(self):
        x = np.random.default_rng(1).normal(size=(3, 48)).astype(np.float32)
        np.save(f"{self.folder}/x.npy", x)
        for fusion in ("on", "off", "auto"):
            done = self.run_client("infer", "--model", "block", "--input", f"x={self.folder}/x.npy", "--fusion", fusion,
                                   "--output-dir", self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            client = triton.connect(self.daemon)
            expected = triton.infer(client, "block", {"x": x}, parameters={"fusion": fusion}).as_numpy("y")
            client.close()
            np.testing.assert_array_equal(np.load(f"{self.folder}/y.npy"), expected)

    def test_infer_from_raw_bytes(self):
        ids = np.arange(1, 8, dtype=np.int64).reshape(1, 7)
        ids.tofile(f"{self.folder}/ids.raw")
        done = self.run_client("infer", "--model", "tiny", "--input", f"input_ids:INT64:1,7={self.folder}/ids.raw", "--output",
                               "sentence_embedding", "--output-dir", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        client = triton.connect(self.daemon)
        expected = triton.infer(client, "tiny", {"input_ids": ids}, ["sentence_embedding"]).as_numpy("sentence_embedding")
        client.close()
        np.testing.assert_array_equal(np.load(f"{self.folder}/sentence_embedding.npy"), expected)

    def test_infer_says_the_status_of_what_fails(self):
        done = self.run_client("infer", "--model", "nobody")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("NOT_FOUND", done.stdout + done.stderr)

    def test_what_cannot_be_written_is_told_with_its_name_and_reason(self):
        os.makedirs(f"{self.folder}/full", exist_ok=True)
        os.symlink("/dev/full", f"{self.folder}/full/y.npy")
        with open(f"{self.folder}/plain", "w"):
            pass
        infer = ["infer", "block", "--output-dir"]
        for arguments, words in (
            ([*infer, "plain"], "fusewire infer: plain/y.npy: cannot write: Not a directory (errno 20)"),
            ([*infer, "full"], "fusewire infer: full/y.npy: cannot write: No space left on device (errno 28)"),
            ([*infer, "no/where"], "fusewire infer: no/where: cannot make the folder: No such file or directory (errno 2)"),
            (["explain", "block", "--output", "no/x.txt"], "fusewire explain: no/x.txt: cannot write: No such file"),
            (["audit", "--output", "/dev/full"], "fusewire audit: /dev/full: cannot write: No space left"),
            (["bench", "block", "--requests", "1", "--quiet", "--html", "no/x.html"],
             "fusewire bench: no/x.html: cannot write: No such file"),
        ):
            done = self.run_client(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
            self.assertNotIn("UNKNOWN", done.stderr)
        for arguments in (["models"], ["infer", "block"], ["explain", "block"], ["audit"],
                          ["bench", "block", "--requests", "1"]):
            for to, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
                done = subprocess.run(["sh", "-c", f'exec "$@" {to}', "sh", client_path(), *arguments,
                                       "--url", self.daemon.address], stderr=subprocess.PIPE, text=True, timeout=120)
                self.assertEqual(done.returncode, 1, (arguments, done.stderr))
                self.assertIn(f"standard output: cannot write: {why}", done.stderr)

    # ---- bench -----------------------------------------------------------------------------------
    def bench(self, *arguments):
        done = self.run_client("bench", "--quiet", "--json", "-", "--warmup", "0", *arguments)
        return done, json.loads(done.stdout) if done.stdout.strip().startswith("{") else None

    def test_bench_counts_what_the_daemon_counts(self):
        before = self.accepted("tiny")
        done, report = self.bench("--model", "tiny", "--max-id", "80", "--tokens", "4..40", "--requests", "60",
                                  "--concurrency", "1,4")
        self.assertEqual(done.returncode, 0, done.stderr)
        levels = report["levels"]
        self.assertEqual([level["concurrency"] for level in levels], [1, 4])
        answered = sum(level["variants"][0]["ok"] + level["warmup_calls"] for level in levels)
        self.assertEqual([level["failed"] for level in levels], [0, 0])
        self.assertGreaterEqual(answered, 120)
        self.assertGreaterEqual(self.accepted("tiny") - before, 120)
        latency = levels[0]["variants"][0]["latency_us"]
        self.assertLessEqual(latency["p50"], latency["p99"])

    def test_open_loop(self):
        for extra in ([], ["--poisson"]):
            done, report = self.bench("--model", "block", "--rate", "200", "--duration", "1s", *extra)
            self.assertEqual(done.returncode, 0, done.stderr)
            level = report["levels"][0]
            self.assertEqual(level["failed"], 0)
            self.assertGreater(level["variants"][0]["ok"] + level["unsent"], 50)

    def test_ab_prints_ratio_and_interval(self):
        done, report = self.bench("--ab", "--model", "tiny", "--max-id", "80", "--tokens", "16", "--requests", "128",
                                  "--concurrency", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        level = report["levels"][0]
        self.assertEqual([variant["fusion"] for variant in level["variants"]], ["on", "off"])
        moved = level["ab"]["bytes"]
        self.assertLessEqual(moved["low"], moved["ratio"])
        self.assertLessEqual(moved["ratio"], moved["high"])
        self.assertGreater(moved["ratio"], 1.0)
        for figure in ("latency", "compute_us", "bytes", "calls_per_s"):
            estimate = level["ab"][figure]
            for part in (estimate["a"], estimate["b"]):
                self.assertLessEqual(part["low"], part["mean"])
                self.assertLessEqual(part["mean"], part["high"])

    def test_ab_holds_the_prediction_and_the_answers_beside_the_times(self):
        ids = np.arange(1, 17, dtype=np.int64).reshape(1, 16)
        np.save(f"{self.folder}/ids16.npy", ids)
        done = self.run_client("bench", "--ab", "--json", "ab.json", "--csv", "ab.csv", "--html", "ab.html", "--model", "tiny",
                               "--input", "input_ids=ids16.npy", "--requests", "16")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(f"{self.folder}/ab.json") as file:
            report = json.load(file)
        # The planner, asked directly about the same batch.
        predicted = report["levels"][0]["ab"]["prediction"]
        self.assertEqual((predicted["tokens"], predicted["sequences"]), (16, 1))
        asked = json.loads(self.run_client("explain", "--model", "tiny", "--tokens", "16", "--seqs", "1", "--fusion", "on",
                                           "--format", "json").stdout)
        for name, plan in (("a", "fused"), ("b", "unfused")):
            total = asked["plans"][plan]["total"]
            self.assertAlmostEqual(predicted[name]["us"] / (total["us"] + asked["device"]["batch_us"]), 1)
            self.assertAlmostEqual(predicted[name]["bytes"] / (total["read_bytes"] + total["write_bytes"]), 1)
        beside = predicted["time_ratio"]
        self.assertAlmostEqual(beside["predicted"], predicted["b"]["us"] / predicted["a"]["us"])
        self.assertAlmostEqual(beside["off"], beside["predicted"] / beside["measured"] - 1, 6)
        # The same two answers, compared by numpy.
        client = triton.connect(self.daemon)
        fused, unfused = (triton.infer(client, "tiny", {"input_ids": ids}, parameters={"fusion": fusion})
                          .as_numpy("last_hidden_state").astype(np.float64) for fusion in ("on", "off"))
        self.assertEqual(report["difference"]["requests"], 1)
        hidden = next(entry for entry in report["difference"]["outputs"] if entry["name"] == "last_hidden_state")
        self.assertAlmostEqual(hidden["max_abs"], np.abs(fused - unfused).max(), 12)
        self.assertAlmostEqual(hidden["relative_l2"]["mean"], np.linalg.norm(fused - unfused) / np.linalg.norm(unfused), 12)
        client.close()
        self.assertEqual((hidden["elements"], hidden["not_finite"]), (16 * 48, 0))
        self.assertIsNone(hidden["relative_l2"]["low"])  # of one request there is no interval
        with open(f"{self.folder}/ab.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertAlmostEqual(float(rows[0]["predicted_us"]) / predicted["a"]["us"], 1, 4)
        self.assertAlmostEqual(float(rows[1]["ab_bytes"]) / report["levels"][0]["ab"]["bytes"]["ratio"], 1, 4)
        self.assertTrue(rows[0]["difference_output"])
        with open(f"{self.folder}/ab.html") as file:
            page = file.read()
        for words in ("planner predicts it for a batch of the run's mean size", "last_hidden_state"):
            self.assertIn(words, done.stdout)
            self.assertIn(words, page)

    def test_ids_for_a_model_that_takes_none(self):
        path = f"{self.folder}/ids.jsonl"
        with open(path, "w") as file:
            file.write("[1, 2, 3]\n")
        done = self.run_client("bench", "--model", "block", "--input-file", path, "--requests", "8")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("no input of block takes any", done.stderr)

    def test_ab_without_comparing(self):
        done = self.run_client("bench", "--ab", "--ab-compare", "0", "--model", "block", "--requests", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("The answers were not compared", done.stdout)
        self.assertNotIn("shadow", done.stderr)

    def test_ab_with_too_little_for_an_interval_says_so(self):
        done, report = self.bench("--ab", "--model", "block", "--requests", "2", "--concurrency", "1,9")
        self.assertEqual(done.returncode, 1)
        for words in ("1 caller: 1 pair of slices, and an interval needs 2", "9 callers: 1 pair of slices"):
            self.assertIn(f"not complete: {words}", done.stderr)
        self.assertIs(report["complete"], False)
        self.assertEqual([level["ab"]["latency"]["low"] for level in report["levels"]], [None, None])
        done, report = self.bench("--ab", "--model", "block", "--requests", "4")
        self.assertEqual((done.returncode, done.stderr, report["complete"]), (0, "", True))

    def test_an_interrupted_run_is_not_all_that_was_asked_for(self):
        command = [client_path(), "bench", "block", "--url", self.daemon.address, "--quiet", "--json", "-", "--warmup", "0",
                   "--duration", "1h", "--concurrency", "1,2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            before = self.accepted("block")
            wait_for(lambda: self.accepted("block") > before + 2, what="no call came")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("not complete: 1 caller: interrupted", err)
        self.assertIn("1 of 2 runs were made", err)
        self.assertGreater(json.loads(out)["levels"][0]["variants"][0]["ok"], 0)

    def test_ab_says_that_shadows_may_be_in_the_way(self):
        done = self.run_client("bench", "--ab", "--model", "block-ab", "--requests", "8", "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a shadow of 0.5 of this model's requests", done.stderr)

    def test_ab_is_refused_at_once_where_there_is_one_plan(self):
        x = f"{self.folder}/rows.npy"
        np.save(x, np.zeros((1, 48), np.float32))
        for mode in ("on", "off", "auto"):
            before = self.accepted(f"block-{mode}")
            for more in ([], ["--input", f"x={x}"]):
                done, _ = self.bench("--ab", "--model", f"block-{mode}", "--duration", "60s", *more)
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"model block-{mode} is served with fusion: {mode}, which has one; its file needs fusion: ab",
                              done.stderr)
            self.assertEqual(self.accepted(f"block-{mode}"), before)

    def test_csv(self):
        path = f"{self.folder}/bench.csv"
        done = self.run_client("bench", "--quiet", "--model", "block", "--requests", "20", "--concurrency", "1,2", "--csv", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path) as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 2)

    def test_errors_are_counted_and_the_exit_code_says_so(self):
        done, report = self.bench("--model", "tiny", "--max-id", "100000", "--tokens", "32", "--requests", "20")
        self.assertNotEqual(done.returncode, 0)
        if report:
            self.assertIn("INVALID_ARGUMENT", report["levels"][0]["errors"])
        else:
            self.assertIn("INVALID_ARGUMENT", done.stdout + done.stderr)
        self.assertNotEqual(self.run_client("bench", "--model", "nobody", "--requests", "1").returncode, 0)
        self.assertNotEqual(self.run_client("bench", "--model", "tiny", address="127.0.0.1:1").returncode, 0)
        wrong = self.run_client("bench", "--modle", "tiny")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("--model", wrong.stderr)
