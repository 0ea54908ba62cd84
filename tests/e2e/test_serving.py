"""Right answers: every length, mask and batch, dtype, fused and unfused, against the double-precision reference."""
import os
import shutil
import tempfile
import threading
import unittest

import numpy as np
from harness import bert_reference, device, tiny_bert, triton
from harness.daemon import Daemon
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
FUSIONS = ("on", "off")
# Relative L2 against double precision after two layers; one op alone is held to 1e-5 and 8e-3 in tests/kernels.
TOLERANCE = {"tiny": 2e-6, "tiny-bf16": 2e-2, "tiny-fp16": 3e-3}
COSINE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999}  # of MiniLM, against PyTorch in fp32
COST_KEYS = {"fusion", "device", "queue_us", "copy_in_us", "compute_us", "copy_out_us", "total_us", "batch_requests",
             "batch_tokens", "batch_close", "kernels", "hbm_read_bytes", "hbm_write_bytes", "hbm_unfused_bytes",
             "achieved_gbps"}


def relative_error(found, expected):
    scale = np.linalg.norm(expected)
    return np.linalg.norm(found - expected) / (scale if scale else 1.0)


class ServingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.names, models = [], []
        for compute, missing in device.computes().items():
            if missing:
                print(f"SKIP {compute}: {missing}")
                continue
            cls.names.append("tiny" if compute == "fp32" else f"tiny-{compute}")
            models.append(tiny_bert.write(cls.folder.name, compute, cls.names[-1]))
        cls.reference = bert_reference.BertReference(cls.folder.name)
        cls.daemon = Daemon(models + [f"{MODELS}/{name}.yaml" for name in ("echo", "echo-bf16", "block")]).start()
        cls.client = triton.connect(cls.daemon)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.stop()
        cls.folder.cleanup()

    def tokens(self, *shape, seed=0):
        return np.random.default_rng(seed).integers(0, tiny_bert.VOCABULARY, shape, np.int64)

    def every_mode(self):
        return [(name, fusion) for name in self.names for fusion in FUSIONS]

    def check_rows(self, model, fusion, ids, mask, types=None):
        """One request; every row against the reference, masked positions against zero."""
        arrays = {"input_ids": ids, "attention_mask": mask}
        if types is not None:
            arrays["token_type_ids"] = types
        result = triton.infer(self.client, model, arrays, parameters={"fusion": fusion})
        hidden, embedding = result.as_numpy("last_hidden_state"), result.as_numpy("sentence_embedding")
        self.assertEqual(hidden.shape, ids.shape + (tiny_bert.HIDDEN,))
        self.assertEqual(embedding.shape, (ids.shape[0], tiny_bert.HIDDEN))
        for row in range(ids.shape[0]):
            expected, vector = self.reference.masked(ids[row], mask[row], None if types is None else types[row])
            where = f"{model} fusion {fusion} row {row} mask {mask[row].tolist()}"
            self.assertTrue((hidden[row][mask[row] == 0] == 0).all(), f"{where}: masked positions are not zero")
            if mask[row].any():
                self.assertLess(relative_error(hidden[row], expected), TOLERANCE[model], where)
                self.assertLess(relative_error(embedding[row], vector), TOLERANCE[model], where)
            else:
                self.assertTrue((embedding[row] == 0).all(), f"{where}: found {embedding[row]}")
        return result

    # ---- lengths, masks, batches -----------------------------------------------------------------
    def test_every_length_alone(self):
        lengths = list(range(1, 34)) + [47, 48, 49, 63, 64, 65, 96, 127, 128, 129, 159, 160]
        for model, fusion in self.every_mode():
            for length in lengths:
                ids = self.tokens(1, length, seed=length)
                self.check_rows(model, fusion, ids, np.ones_like(ids))

    def test_without_a_mask_every_position_counts(self):
        ids = self.tokens(3, 17)
        for model, fusion in self.every_mode():
            result = triton.infer(self.client, model, {"input_ids": ids}, parameters={"fusion": fusion})
            for row in range(3):
                error = relative_error(result.as_numpy("last_hidden_state")[row], self.reference.hidden(ids[row]))
                self.assertLess(error, TOLERANCE[model])

    def test_padded_batch_of_unlike_lengths(self):
        lengths = [1, 2, 40, 7, 33, 16, 12, 40, 3]
        ids = self.tokens(len(lengths), 40)
        mask = (np.arange(40) < np.array(lengths)[:, None]).astype(np.int64)
        for model, fusion in self.every_mode():
            self.check_rows(model, fusion, ids, mask)

    def test_left_padding(self):
        ids = self.tokens(4, 24, seed=1)
        mask = (np.arange(24) >= np.array([0, 5, 20, 23])[:, None]).astype(np.int64)
        for model, fusion in self.every_mode():
            self.check_rows(model, fusion, ids, mask)

    def test_masks_with_holes_keep_positions(self):
        ids = self.tokens(6, 30, seed=2)
        mask = np.random.default_rng(2).integers(0, 2, ids.shape).astype(np.int64)
        mask[0, 1::2], mask[1], mask[1, [0, 29]] = 0, 0, 1
        mask[:, 0] |= mask.sum(axis=1) == 0
        for model, fusion in self.every_mode():
            self.check_rows(model, fusion, ids, mask)

    def test_a_fully_masked_row_is_zero_and_harms_nobody(self):
        ids = self.tokens(3, 10, seed=3)
        mask = np.ones_like(ids)
        mask[1] = 0
        for model, fusion in self.every_mode():
            self.check_rows(model, fusion, ids, mask)

    def test_a_request_that_keeps_no_position_at_all_is_refused(self):
        ids = self.tokens(2, 10, seed=3)
        with self.assertRaises(triton.InferenceServerException) as raised:
            triton.infer(self.client, "tiny", {"input_ids": ids, "attention_mask": np.zeros_like(ids)})
        self.assertIn("INVALID_ARGUMENT", raised.exception.status())
        self.assertIn("mask", raised.exception.message())

    def test_token_types(self):
        ids, types = self.tokens(2, 12, seed=4), self.tokens(2, 12, seed=5) % 2
        for model, fusion in self.every_mode():
            self.check_rows(model, fusion, ids, np.ones_like(ids), types)

    def test_typed_contents_equal_raw(self):
        ids = self.tokens(2, 9, seed=6)
        request = triton.service_pb2.ModelInferRequest(model_name="tiny")
        tensor = request.inputs.add(name="input_ids", datatype="INT64", shape=ids.shape)
        tensor.contents.int64_contents.extend(ids.flatten().tolist())
        reply = self.client._client_stub.ModelInfer(request)
        raw = triton.infer(self.client, "tiny", {"input_ids": ids}).get_response()
        self.assertEqual(list(reply.raw_output_contents), list(raw.raw_output_contents))

    def test_many_clients_of_unlike_lengths_at_once(self):
        failures = []

        def work(thread):
            random = np.random.default_rng(thread)
            client = triton.connect(self.daemon)
            for i in range(12):
                model, fusion = self.names[i % len(self.names)], FUSIONS[thread % 2]
                rows, length = random.integers(1, 4), random.integers(1, 60)
                ids = random.integers(0, tiny_bert.VOCABULARY, (rows, length))
                result = triton.infer(client, model, {"input_ids": ids}, parameters={"fusion": fusion})
                for row in range(rows):
                    error = relative_error(result.as_numpy("last_hidden_state")[row], self.reference.hidden(ids[row]))
                    if not error < TOLERANCE[model]:
                        failures.append(f"{model} {fusion} thread {thread} {ids.shape}: {error}")
            client.close()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    # ---- outputs ---------------------------------------------------------------------------------
    def test_one_output_is_answered_and_paid_alone(self):
        ids = self.tokens(2, 20, seed=7)
        for model, fusion in self.every_mode():
            both = triton.infer(self.client, model, {"input_ids": ids}, parameters={"fusion": fusion})
            for name in ("last_hidden_state", "sentence_embedding"):
                one = triton.infer(self.client, model, {"input_ids": ids}, [name], parameters={"fusion": fusion})
                self.assertEqual([output.name for output in one.get_response().outputs], [name])
                np.testing.assert_array_equal(one.as_numpy(name), both.as_numpy(name))
            hidden_only = triton.infer(self.client, model, {"input_ids": ids}, ["last_hidden_state"],
                                       parameters={"fusion": fusion})
            self.assertLess(triton.parameters(hidden_only)["kernels"], triton.parameters(both)["kernels"])
            self.assertLess(triton.parameters(hidden_only)["hbm_unfused_bytes"], triton.parameters(both)["hbm_unfused_bytes"])

    def test_outputs_come_in_the_order_asked(self):
        names = ["sentence_embedding", "last_hidden_state"]
        result = triton.infer(self.client, "tiny", {"input_ids": self.tokens(1, 5)}, names)
        self.assertEqual([output.name for output in result.get_response().outputs], names)
        self.assertEqual(result.as_numpy(names[0]).shape, (1, tiny_bert.HIDDEN))

    # ---- cost ------------------------------------------------------------------------------------
    def test_the_reply_says_what_it_cost(self):
        ids = self.tokens(2, 32, seed=8)
        costs = {}
        for model, fusion in self.every_mode():
            result = triton.infer(self.client, model, {"input_ids": ids}, parameters={"fusion": fusion})
            cost = costs[model, fusion] = triton.parameters(result)
            self.assertEqual(COST_KEYS - cost.keys(), set())
            self.assertEqual(cost["fusion"], fusion)
            self.assertEqual(cost["device"], device.name())
            self.assertEqual((cost["batch_requests"], cost["batch_tokens"]), (1, 64))
            self.assertIn(cost["batch_close"], ("full", "delay", "idle", "deadline"))
            parts = sum(cost[f"{part}_us"] for part in ("queue", "copy_in", "compute", "copy_out"))
            self.assertLessEqual(parts, cost["total_us"] * 1.001 + 1)
            self.assertGreater(cost["compute_us"], 0)
        for model in self.names:
            on, off = costs[model, "on"], costs[model, "off"]
            moved = {mode: cost["hbm_read_bytes"] + cost["hbm_write_bytes"] for mode, cost in (("on", on), ("off", off))}
            self.assertLess(on["kernels"], off["kernels"])
            self.assertLess(moved["on"], moved["off"])
            self.assertEqual(on["hbm_unfused_bytes"], off["hbm_unfused_bytes"])
            self.assertAlmostEqual(moved["off"] / off["hbm_unfused_bytes"], 1.0, delta=1e-3)

    def test_request_id_model_name_and_version_are_echoed(self):
        response = triton.infer(self.client, "tiny", {"input_ids": self.tokens(1, 3)}, request_id="order 66 ✓").get_response()
        self.assertEqual((response.id, response.model_name, response.model_version), ("order 66 ✓", "tiny", "1"))

    # ---- other models ----------------------------------------------------------------------------
    def test_echo_returns_every_bit_pattern(self):
        bits = np.random.default_rng(9).integers(0, 1 << 32, 3 * 256, np.uint32)
        x = bits.view(np.float32).reshape(1, 3, 256)
        result = triton.infer(self.client, "echo", {"x": x})
        self.assertEqual(result.get_response().raw_output_contents[0], x.tobytes())

    def test_bf16_comes_back_bit_for_bit(self):
        bits = np.arange(65536, dtype=np.uint16).reshape(-1, 8)
        for rows in np.split(bits, 8):
            response = triton.infer(self.client, "echo-bf16", {"x": rows}).get_response()
            self.assertEqual(response.raw_output_contents[0], rows.tobytes())
            self.assertEqual(response.outputs[0].datatype, "BF16")

    def test_nan_and_inf_rows_leave_the_others_untouched(self):
        x = np.random.default_rng(10).normal(size=(8, 48)).astype(np.float32)
        ugly = x.copy()
        ugly[2, 5], ugly[4, :], ugly[6, 0] = np.nan, np.inf, -np.inf
        for fusion in FUSIONS:
            clean = triton.infer(self.client, "block", {"x": x}, parameters={"fusion": fusion}).as_numpy("y")
            mixed = triton.infer(self.client, "block", {"x": ugly}, parameters={"fusion": fusion}).as_numpy("y")
            others = [0, 1, 3, 5, 7]
            np.testing.assert_array_equal(mixed[others], clean[others])
            self.assertTrue(np.isnan(mixed[[2, 4, 6]]).all(axis=1).all(), mixed[[2, 4, 6]])

    # ---- about -----------------------------------------------------------------------------------
    def test_metadata_and_readiness(self):
        self.assertTrue(self.client.is_server_live() and self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("tiny"))
        server = self.client.get_server_metadata()
        self.assertEqual(server.name, "fusewire")
        self.assertTrue(server.version)
        model = self.client.get_model_metadata("tiny")
        self.assertEqual(list(model.versions), ["1"])
        self.assertEqual([(t.name, t.datatype, list(t.shape)) for t in model.inputs],
                         [("input_ids", "INT64", [-1, -1]), ("attention_mask", "INT64", [-1, -1]),
                          ("token_type_ids", "INT64", [-1, -1])])
        self.assertEqual([(t.name, t.datatype, list(t.shape)) for t in model.outputs],
                         [("last_hidden_state", "FP32", [-1, -1, tiny_bert.HIDDEN]),
                          ("sentence_embedding", "FP32", [-1, tiny_bert.HIDDEN])])


class GoldenTest(unittest.TestCase):
    """The real model against PyTorch's own embeddings, through the whole daemon."""

    MINILM = os.path.join(ROOT, ".cache", "minilm")

    @unittest.skipUnless(os.path.exists(f"{MINILM}/.complete"), "all-MiniLM-L6-v2 is not in .cache/minilm")
    def test_minilm_gives_the_golden_embeddings(self):
        import json

        with open(os.path.join(ROOT, "tests", "golden", "minilm.json")) as file:
            golden = json.load(file)
        folder = tempfile.mkdtemp(prefix="fusewire-minilm-")
        self.addCleanup(shutil.rmtree, folder)
        computes = [compute for compute, missing in device.computes().items() if not missing]
        with Daemon([self.write_model(folder, compute) for compute in computes]) as daemon:
            client = triton.connect(daemon)
            for compute in computes:
                for fusion in FUSIONS:
                    for how, cosine in (("in one batch", self.cosines(client, golden, compute, fusion, 0)),
                                        ("alone", self.cosines(client, golden, compute, fusion, 1))):
                        print(f"minilm {compute} fusion {fusion} {how}: least cosine against PyTorch {cosine.min():.8f}")
                        self.assertGreaterEqual(cosine.min(), COSINE[compute])
            client.close()

    def write_model(self, folder, compute):
        """config/models/minilm.yaml with another compute type."""
        with open(os.path.join(ROOT, "config", "models", "minilm.yaml")) as file:
            text = file.read()
        for old, new in {"name: minilm\n": f"name: minilm-{compute}\n", "compute: fp32": f"compute: {compute}",
                         "../../.cache/minilm": self.MINILM}.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        path = os.path.join(folder, f"minilm-{compute}.yaml")
        with open(path, "w") as file:
            file.write(text)
        return path

    def cosines(self, client, golden, compute, fusion, at_once):
        """Of every golden sentence, `at_once` to a request (0: all of them, padded)."""
        found, sentences = [], golden["input_ids"]
        for begin in range(0, len(sentences), at_once or len(sentences)):
            rows = sentences[begin:begin + (at_once or len(sentences))]
            longest = max(map(len, rows))
            ids = np.array([row + [0] * (longest - len(row)) for row in rows], np.int64)
            mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int64)
            result = triton.infer(client, f"minilm-{compute}", {"input_ids": ids, "attention_mask": mask},
                                  ["sentence_embedding"], parameters={"fusion": fusion})
            found.append(result.as_numpy("sentence_embedding"))
        return (np.concatenate(found) * np.array(golden["sentence_embedding"])).sum(axis=1)
