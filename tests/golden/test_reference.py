"""The numpy reference against PyTorch's own BertModel (minilm.json, made by make_golden.py)."""
import json
import os
import unittest

import numpy as np
from harness import bert_reference
from harness.run import ROOT

MODEL = os.path.join(ROOT, ".cache", "minilm")


@unittest.skipUnless(os.path.exists(f"{MODEL}/.complete"), "all-MiniLM-L6-v2 is not in .cache/minilm")
class ReferenceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reference = bert_reference.BertReference(MODEL)
        with open(os.path.join(ROOT, "tests", "golden", "minilm.json")) as file:
            cls.golden = json.load(file)

    def test_tokens_are_those_of_the_golden_file(self):
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(f"{MODEL}/tokenizer.json")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        for sentence, ids in zip(self.golden["sentences"], self.golden["input_ids"]):
            self.assertEqual(tokenizer.encode(sentence).ids, ids, sentence)

    def test_embeddings_equal_those_of_bert_model(self):
        for ids, expected in zip(self.golden["input_ids"], self.golden["sentence_embedding"]):
            error = np.abs(self.reference.embed(ids) - expected).max()
            self.assertLess(error, 1e-9, f"{len(ids)} tokens")

    def test_hidden_states_equal_those_of_bert_model(self):
        for ids, expected in zip(self.golden["input_ids"], self.golden["first_token_hidden"]):
            error = np.abs(self.reference.hidden(ids)[0] - expected).max()
            self.assertLess(error, 1e-9, f"{len(ids)} tokens")

    def test_a_changed_weight_is_noticed(self):
        weights = self.reference.weights
        name = "encoder.layer.3.attention.self.query.weight"
        saved = weights[name]
        try:
            weights[name] = saved * 1.001
            error = np.abs(self.reference.embed(self.golden["input_ids"][1]) - self.golden["sentence_embedding"][1]).max()
        finally:
            weights[name] = saved
        self.assertGreater(error, 1e-8)

    def test_masked_rows_are_the_packed_sequence_with_its_positions(self):
        ids = self.golden["input_ids"][1]
        hidden, embedding = self.reference.masked(ids + [0, 0, 0], [1] * len(ids) + [0, 0, 0])
        self.assertLess(np.abs(embedding - self.golden["sentence_embedding"][1]).max(), 1e-9)
        self.assertTrue((hidden[len(ids):] == 0).all())
