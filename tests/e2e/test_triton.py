"""Triton's superset of the protocol, by its stock client: configuration, statistics."""
import os
import time
import unittest

import numpy as np
from harness import device, triton
from harness.daemon import Daemon
from harness.run import ROOT
from tritonclient.grpc import model_config_pb2

MODELS = os.path.join(ROOT, "tests", "e2e", "models")


def block(rows):
    return {"x": np.zeros((rows, 48), np.float32)}


def echo(rows=2):
    return {"x": np.ones((1, rows, 256), np.float32)}


class TritonTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon([f"{MODELS}/block.yaml", f"{MODELS}/echo.yaml"]).start()
        cls.client = triton.connect(cls.daemon)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.stop()

    def statistics(self, model, version=""):
        reply = self.client.get_inference_statistics(model, version)
        self.assertEqual(len(reply.model_stats), 1)
        return reply.model_stats[0]

    def failure(self, code, words, call):
        with self.assertRaises(triton.InferenceServerException) as raised:
            call()
        self.assertEqual(raised.exception.status(), f"StatusCode.{code}")
        self.assertRegex(raised.exception.message(), words)

    # ---- configuration ---------------------------------------------------------------------------
    def test_the_configuration_tells_the_signature_without_the_batch(self):
        config = self.client.get_model_config("block").config
        self.assertEqual((config.name, config.backend), ("block", "fusewire"))
        self.assertEqual(config.max_batch_size, 256)
        self.assertEqual([(i.name, i.data_type, list(i.dims), i.optional) for i in config.input],
                         [("x", model_config_pb2.TYPE_FP32, [48], False)])
        self.assertEqual([(o.name, o.data_type, list(o.dims)) for o in config.output],
                         [("y", model_config_pb2.TYPE_FP32, [48])])
        self.assertEqual(config.WhichOneof("scheduling_choice"), "dynamic_batching")
        self.assertFalse(config.model_transaction_policy.decoupled)
        self.assertEqual(config.parameters["compute"].string_value, "fp32")
        self.assertEqual([config.parameters[key].string_value for key in ("fusion", "fusion_default")], ["ab", "on"])
        echo_config = self.client.get_model_config("echo", "1").config
        self.assertEqual(list(echo_config.input[0].dims), [-1, 256])
        self.assertTrue(echo_config.input[0].allow_ragged_batch)

    def test_unknown_models_are_not_found(self):
        for call in (self.client.get_model_config, self.client.get_inference_statistics):
            self.failure("NOT_FOUND", "no model .nobody. is served", lambda: call("nobody"))
            self.failure("NOT_FOUND", "has no version .7.", lambda: call("block", "7"))

    # ---- statistics ------------------------------------------------------------------------------
    def test_statistics_count_requests_rows_and_runs(self):
        before = self.statistics("block")
        for rows in (1, 2, 3, 3):
            triton.infer(self.client, "block", block(rows))
        after = self.statistics("block")
        self.assertEqual(after.inference_count - before.inference_count, 9)
        self.assertEqual(after.execution_count - before.execution_count, 4)
        stats, old = after.inference_stats, before.inference_stats
        for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
            self.assertEqual(getattr(stats, name).count - getattr(old, name).count, 4, name)
        self.assertGreater(stats.compute_infer.ns, old.compute_infer.ns)
        parts = sum(getattr(stats, name).ns for name in ("queue", "compute_input", "compute_infer", "compute_output"))
        self.assertLessEqual(parts, stats.success.ns)
        self.assertEqual(stats.cache_hit.count + stats.cache_miss.count, 0)
        self.assertLess(abs(after.last_inference / 1000 - time.time()), 60)

    def test_sizes_of_batches_add_up(self):
        for rows in (1, 5, 5, 7):
            triton.infer(self.client, "block", block(rows))
        entry = self.statistics("block")
        sizes = {batch.batch_size: batch.compute_infer.count for batch in entry.batch_stats}
        self.assertGreaterEqual(sizes[5], 2)
        self.assertEqual(sum(sizes.values()), entry.execution_count)
        self.assertEqual(sum(size * count for size, count in sizes.items()), entry.inference_count)

    def test_failures_are_counted_as_failures(self):
        before = self.statistics("block")
        for _ in range(3):
            self.failure("INVALID_ARGUMENT", "shape", lambda: triton.infer(
                self.client, "block", {"x": np.zeros((1, 47), np.float32)}))
        after = self.statistics("block")
        self.assertEqual(after.inference_stats.fail.count - before.inference_stats.fail.count, 3)
        self.assertEqual(after.inference_stats.success.count, before.inference_stats.success.count)
        response = after.response_stats["0"]
        self.assertEqual(response.fail.count, after.inference_stats.fail.count)
        self.assertEqual(response.success.count, after.inference_stats.success.count)
        self.assertEqual(response.cancel.count, 0)

    def test_no_name_means_every_model_and_models_are_kept_apart(self):
        triton.infer(self.client, "echo", echo())
        names = [(entry.name, entry.version) for entry in self.client.get_inference_statistics().model_stats]
        self.assertEqual(names, [("block", "1"), ("echo", "1")])
        before = self.statistics("block")
        triton.infer(self.client, "echo", echo())
        self.assertEqual(self.statistics("block"), before)
        self.assertEqual(self.statistics("echo", "1").version, "1")

    def test_memory_is_what_the_device_has_booked(self):
        def total(family, **labels):
            return sum(value for key, value in metrics.items() if key.startswith(family + "{")
                       and all(f'{name}="{word}"' in key for name, word in labels.items()))

        metrics, on_device = self.daemon.metrics(), f"{device.name()}:0"
        memory = "fusewire_model_memory_bytes"
        booked = total("fusewire_device_memory_bytes", device=on_device, kind="weights")
        self.assertEqual(total(memory, device=on_device, kind="weights"), booked)
        arenas = [total(memory, model=model, device=on_device, kind="arena") for model in ("block", "echo")]
        self.assertGreaterEqual(total("fusewire_device_memory_bytes", device=on_device, kind="arenas"), max(arenas))
        self.assertGreater(min(arenas), 0)
        matrices, vectors = 2 * 48 * 96 * 4, (48 + 96 + 48 + 48) * 4  # of block.yaml, both plans from one copy
        weights, host = (total(memory, model="block", device=name, kind="weights") for name in (on_device, "host"))
        self.assertGreaterEqual(weights, matrices)
        self.assertLess(weights, 2 * (matrices + vectors))
        self.assertGreaterEqual(host, matrices + vectors)  # synthetic ones are kept as they were made
        usage = {(entry.type, entry.id): entry.byte_size for entry in self.statistics("block").memory_usage}
        self.assertEqual(usage, {("GPU", 0): weights, ("CPU", 0): host} if device.on_gpu() else {("CPU", 0): weights + host})
        self.assertEqual([entry.byte_size for entry in self.statistics("echo").memory_usage], [0])

    def test_metadata_names_the_extensions(self):
        extensions = list(self.client.get_server_metadata().extensions)
        self.assertIn("statistics", extensions)
        self.assertIn("model_configuration", extensions)
