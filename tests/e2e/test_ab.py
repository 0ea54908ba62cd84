"""A/B in the daemon: what `fusion: ab` and its metrics say, held against the replies of a stock client."""
import os
import subprocess
import tempfile
import threading
import time
import unittest

import numpy as np
from harness import tiny_bert, triton
from harness.clock import wait_for
from harness.daemon import Daemon, check, client_path
from harness.run import ROOT

BLOCK = os.path.join(ROOT, "tests", "e2e", "models", "block.yaml")


def series(metrics, name, model, fusion):
    """The one value of a metric of a model and a mode."""
    found = [value for key, value in metrics.items()
             if key.startswith(name + "{") and f'model="{model}"' in key and f'fusion="{fusion}"' in key]
    assert len(found) == 1, (name, model, fusion, found)
    return found[0]


class CountersTest(unittest.TestCase):
    """Metrics by model and fusion are the sums of what the replies say."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.daemon = Daemon([tiny_bert.write(cls.folder.name), BLOCK]).start()
        cls.client = triton.connect(cls.daemon)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.stop()
        cls.folder.cleanup()

    def ask(self, model, fusion, size):
        if model == "block":
            arrays = {"x": np.random.default_rng(size).normal(size=(size, 48)).astype(np.float32)}
        else:
            arrays = {"input_ids": np.random.default_rng(size).integers(0, tiny_bert.VOCABULARY, (2, size), np.int64)}
        return triton.parameters(triton.infer(self.client, model, arrays, parameters={"fusion": fusion}))

    def test_counters_are_the_sums_of_the_replies(self):
        for model in ("tiny", "block"):
            for fusion in ("on", "off"):
                with self.subTest(model=model, fusion=fusion):
                    replies = [self.ask(model, fusion, size) for size in (1, 7, 40, 19)]
                    read, write, unfused = (sum(reply[f"hbm_{word}_bytes"] for reply in replies)
                                            for word in ("read", "write", "unfused"))
                    seconds = sum(reply["compute_us"] for reply in replies) / 1e6
                    metrics = self.daemon.metrics()

                    def value(name):
                        return series(metrics, f"fusewire_{name}", model, fusion)

                    self.assertEqual(value("hbm_read_bytes_total"), read)
                    self.assertEqual(value("hbm_write_bytes_total"), write)
                    self.assertEqual(value("hbm_unfused_bytes_total"), unfused)
                    self.assertEqual(value("hbm_saved_bytes_total"), unfused - read - write)
                    if fusion == "on":
                        self.assertGreater(value("hbm_saved_bytes_total"), 0)
                    # Each was a batch of its own, so that batches add up to the same.
                    self.assertEqual(value("batches_total"), len(replies))
                    self.assertAlmostEqual(value("batch_bytes_total"), read + write, delta=2 * len(replies))
                    self.assertAlmostEqual(value("batch_compute_seconds_total"), seconds, delta=1e-6)
                    self.assertGreater(value("batch_flops_total"), 0)
                    # The mean is between the least and the greatest of the replies.
                    rates = [reply["achieved_gbps"] for reply in replies]
                    self.assertGreaterEqual(value("achieved_gbps"), min(rates) * 0.999)
                    self.assertLessEqual(value("achieved_gbps"), max(rates) * 1.001)
                    self.assertAlmostEqual(value("arithmetic_intensity"),
                                           value("batch_flops_total") / value("batch_bytes_total"), delta=0.1 * value(
                                               "arithmetic_intensity"))
            flops = [series(metrics, "fusewire_batch_flops_total", model, fusion) for fusion in ("on", "off")]
            self.assertAlmostEqual(flops[0] / flops[1], 1, delta=0.02)  # fusion moves bytes, it saves no operations


def write_model(folder, name, ab):
    """The shipped block with a key `ab` of its own."""
    with open(BLOCK) as file:
        text = file.read().replace("name: block", f"name: {name}") + f"ab: {ab}\n"
    path = os.path.join(folder, f"{name}.yaml")
    with open(path, "w") as file:
        file.write(text)
    return path


def rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 48)).astype(np.float32)


class ShareTest(unittest.TestCase):
    def test_every_fifth_request_that_chooses_nothing_runs_unfused(self):
        with tempfile.TemporaryDirectory() as folder, Daemon([write_model(folder, "m", "{unfused_share: 0.2}")]) as daemon:
            client = triton.connect(daemon)
            ran = []
            for _ in range(40):
                with self.assertRaises(triton.InferenceServerException):  # what is refused takes no turn
                    triton.infer(client, "m", {"x": rows(2)[:, :40]})
                ran.append(triton.parameters(triton.infer(client, "m", {"x": rows(2)}))["fusion"])
            chosen = [triton.parameters(triton.infer(client, "m", {"x": rows(2)}, parameters={"fusion": fusion}))["fusion"]
                      for fusion in ("on", "off") * 5]
            metrics = daemon.metrics()
            client.close()
        self.assertEqual(ran, (["on"] * 4 + ["off"]) * 8)
        self.assertEqual(chosen, ["on", "off"] * 5)
        self.assertEqual(series(metrics, "fusewire_infer_accepted_total", "m", "off"), 8 + 5)
        self.assertEqual(series(metrics, "fusewire_infer_accepted_total", "m", "on"), 40 + 32 + 5)


class ShadowTest(unittest.TestCase):
    """The other plan runs behind: what it finds, what it says, and that nobody else sees of it."""

    def start(self, models, settings=None):
        daemon = Daemon(models, settings).start()
        self.addCleanup(daemon.kill)
        return daemon

    def shadow(self, metrics, name, model="m", **labels):
        """The sum of a metric of shadows over the series with these labels."""
        wanted = [f'{key}="{value}"' for key, value in {"model": model, **labels}.items()]
        found = [value for key, value in metrics.items()
                 if key.startswith(f"fusewire_shadow_{name}{{") and all(label in key for label in wanted)]
        self.assertTrue(found, (name, labels))
        return sum(found)

    def slots(self, metrics, model="m"):
        return metrics[f'fusewire_model_memory_bytes{{model="{model}",version="1",device="host",kind="shadows"}}']

    def settle(self, daemon, model="m"):
        """The metrics when no shadow is on its way; what must hold then."""
        metrics = daemon.settled(lambda metrics: self.shadow(metrics, "pending", model) == 0)
        self.assertEqual(self.shadow(metrics, "sampled_total", model),
                         self.shadow(metrics, "compared_total", model) + self.shadow(metrics, "failed_total", model) +
                         self.shadow(metrics, "dropped_total", model))
        return metrics

    def test_every_second_answer_is_compared_and_no_answer_changes(self):
        with tempfile.TemporaryDirectory() as folder:
            text = tiny_bert.write(folder, name="m")
            with open(text, "a") as file:
                file.write("ab: {shadow: 0.5, alarm: 1.0e-5}\n")
            plain = tiny_bert.write(folder, name="plain")
            daemon = self.start([text, plain])
            client = triton.connect(daemon)
            random = np.random.default_rng(1)
            for i in range(24):
                ids = random.integers(0, tiny_bert.VOCABULARY, (1 + i % 3, 5 + i), np.int64)
                mask = (random.random(ids.shape) < 0.8).astype(np.int64)
                mask[:, 0] = 1
                arrays = {"input_ids": ids, "attention_mask": mask} if i % 2 else {"input_ids": ids}
                options = {"parameters": {"fusion": ("on", "off")[i % 4 // 2]}, "request_id": f"r{i}"}
                found = triton.infer(client, "m", arrays, **options)
                expected = triton.infer(client, "plain", arrays, **options)
                for name in ("last_hidden_state", "sentence_embedding"):
                    np.testing.assert_array_equal(found.as_numpy(name), expected.as_numpy(name))
                self.settle(daemon)  # so that none finds the slots taken
            metrics = self.settle(daemon)
            listing = subprocess.run([client_path(), "models", "--url", daemon.address, "--model", "m"],
                                     capture_output=True, text=True, check=True).stdout
            client.close()
            daemon.stop()
        self.assertEqual(self.shadow(metrics, "sampled_total"), 12)
        self.assertEqual(self.shadow(metrics, "compared_total"), 12)
        self.assertEqual(series(metrics, "fusewire_batches_total", "m", "on"), 12)
        self.assertEqual(series(metrics, "fusewire_batches_total", "m", "off"), 12)
        for output in ("last_hidden_state", "sentence_embedding"):
            self.assertEqual(self.shadow(metrics, "exceeded_total", output=output), 0)
            self.assertEqual(self.shadow(metrics, "relative_l2_count", output=output), 12)
            self.assertLess(self.shadow(metrics, "max_relative_l2", output=output), 1e-5)
            # The plans do not add in the same order, so a shadow that finds nothing has compared nothing.
            self.assertGreater(self.shadow(metrics, "max_relative_l2", output=output), 0)
            self.assertGreater(self.shadow(metrics, "max_abs", output=output), 0)
        self.assertEqual(self.slots(metrics), 2 * 512 * (2 * 8 + 2 * 4 + 4 * tiny_bert.HIDDEN * 4))
        self.assertGreater(self.shadow(metrics, "compute_seconds_total"), 0)
        self.assertIn("12 sampled, 12 compared, 0 failed, 0 dropped", listing)
        self.assertRegex(listing, r"shadow last_hidden_state = differs by at most \S+e-0\d .*; 0 of 12 over the alarm")
        self.assertIn("ab.shadow = 0.5", listing)

    def test_an_alarm_names_the_request_and_nan_is_no_difference(self):
        with tempfile.TemporaryDirectory() as folder:
            path = tiny_bert.write(folder, name="m")
            with open(path, "a") as file:
                file.write("ab: {shadow: 1, alarm: 0}\n")
            quiet = write_model(folder, "quiet", "{shadow: 1, alarm: 0.01}")
            daemon = self.start([path, quiet])
            client = triton.connect(daemon)
            ids = np.random.default_rng(1).integers(0, tiny_bert.VOCABULARY, (2, 30), np.int64)
            triton.infer(client, "m", {"input_ids": ids}, request_id="the one")
            ugly = rows(6)
            ugly[1, 3], ugly[4] = np.nan, np.inf
            triton.infer(client, "quiet", {"x": ugly}, request_id="another")
            self.settle(daemon)
            metrics = self.settle(daemon, "quiet")  # the last reading, when both are at rest
            client.close()
            daemon.stop()
        alarms = [line for line in daemon.lines if "shadow_alarm" in line]
        self.assertEqual(len(alarms), self.shadow(metrics, "exceeded_total"))
        self.assertGreater(len(alarms), 0)
        self.assertRegex(alarms[0], r"differ by \S+e-0\d .* model=m .*output=last_hidden_state id=the.one")
        self.assertEqual(self.shadow(metrics, "compared_total", "quiet"), 1)
        self.assertEqual(self.shadow(metrics, "exceeded_total", "quiet"), 0)

    def load(self, daemon, model, threads, stop):
        """Threads that ask until `stop` is set; a list with the number of answers of each, filled in at the end."""
        answers = []

        def ask(seed):
            client = triton.connect(daemon)
            n = 0
            while not stop.is_set():
                triton.infer(client, model, {"x": rows(1 + n % 7, seed)})
                n += 1
            client.close()
            answers.append(n)

        running = [threading.Thread(target=ask, args=(seed,)) for seed in range(threads)]
        for thread in running:
            thread.start()
        return running, answers

    def test_models_that_are_replaced_under_load_are_freed_after_their_last_shadow(self):
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(folder, "m", "{shadow: 1, unfused_share: 0.3}")
            daemon = self.start([path], {"server": {"model_control": True}})
            stop = threading.Event()
            threads, answers = self.load(daemon, "m", 3, stop)
            client = triton.connect(daemon)
            for _ in range(5):
                client.load_model("m")
                time.sleep(0.05)
            stop.set()
            for thread in threads:
                thread.join()
            metrics = self.settle(daemon)
            client.unload_model("m")
            wait_for(lambda: len(daemon.wait_line("model_freed")) == 6, what=daemon.log)
            self.assertEqual(self.slots(daemon.metrics()), 0)
            client.close()
            daemon.stop()
        self.assertEqual(self.shadow(metrics, "sampled_total"), sum(answers))
        self.assertGreater(self.shadow(metrics, "compared_total"), 0)
        self.assertEqual(self.shadow(metrics, "failed_total"), 0)
        self.assertEqual(self.shadow(metrics, "exceeded_total"), 0)

    def test_a_drain_answers_everybody_and_leaves_shadows_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            path = write_model(folder, "m", "{shadow: 1}")
            daemon = self.start([path])
            client = triton.connect(daemon)
            for i in range(20):
                triton.infer(client, "m", {"x": rows(7, i)})
            client.close()
            daemon.stop()  # exit code 0, at once
            self.assertIn("in good order", daemon.log())

    def test_check_tells_mistakes(self):
        with tempfile.TemporaryDirectory() as folder:
            code, text = check([write_model(folder, "m", "{shadow: 2}")])
            self.assertEqual(code, 2)
            self.assertIn("ab.shadow: expected a number from 0 to 1, found 2", text)


if __name__ == "__main__":
    unittest.main()
