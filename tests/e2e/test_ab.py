"""A/B in the daemon: what `fusion: ab` and its metrics say, held against the replies of a stock client."""
import os
import tempfile
import unittest

import numpy as np
from harness import tiny_bert, triton
from harness.daemon import Daemon
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


if __name__ == "__main__":
    unittest.main()
