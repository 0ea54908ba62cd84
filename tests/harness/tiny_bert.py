"""A BERT encoder small enough for sanitizer builds, with Hugging Face's names and random weights.

The model file is config/models/minilm.yaml itself with other numbers, so that what is shipped is what is tested.
"""
import json
import os

import numpy as np

from . import safetensors_file
from .run import ROOT

HIDDEN, HEADS, INNER, LAYERS, VOCABULARY, POSITIONS = 48, 4, 112, 2, 90, 160


def weights(seed=3):
    random = np.random.default_rng(seed)
    arrays = {}

    def matrix(name, rows, cols, scale=0.15):
        arrays[name] = random.normal(0, scale, (rows, cols)).astype(np.float32)

    def vector(name, size, centre=0.0):
        arrays[name] = random.normal(centre, 0.1, size).astype(np.float32)

    for part, rows in (("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)):
        matrix(f"embeddings.{part}_embeddings.weight", rows, HIDDEN, 0.5)
    norms, products = ["embeddings.LayerNorm"], []
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        products += [(f"{layer}.attention.self.{part}", HIDDEN, HIDDEN) for part in ("query", "key", "value")]
        products += [(f"{layer}.attention.output.dense", HIDDEN, HIDDEN), (f"{layer}.intermediate.dense", INNER, HIDDEN),
                     (f"{layer}.output.dense", HIDDEN, INNER)]
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, rows, cols in products:
        matrix(f"{name}.weight", rows, cols)
        vector(f"{name}.bias", rows)
    for name in norms:
        vector(f"{name}.weight", HIDDEN, 1.0)
        vector(f"{name}.bias", HIDDEN)
    return arrays


def write(folder, compute="fp32", name="tiny", arrays=None, dtype="F32", batch="{max_tokens: 512}", fusion="ab"):
    """config.json, model.safetensors and NAME.yaml in `folder`; the path of the model file."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
                   "intermediate_size": INNER, "layer_norm_eps": 1e-12}, file)
    safetensors_file.save(os.path.join(folder, "model.safetensors"), arrays or weights(), dtype)
    with open(os.path.join(ROOT, "config", "models", "minilm.yaml")) as file:
        text = file.read()
    for old, new in {
        "name: minilm\n": f"name: {name}\nbatch: {batch}\n",
        "../../.cache/minilm/model.safetensors": "model.safetensors",
        "compute: fp32": f"compute: {compute}",
        "fusion: ab": f"fusion: {fusion}",
        "max_seqlen: 512": f"max_seqlen: {POSITIONS}",
        "times: 6": f"times: {LAYERS}",
        "heads: 12": f"heads: {HEADS}",
        "layer.5": f"layer.{LAYERS - 1}",
    }.items():
        assert old in text, f"config/models/minilm.yaml has no {old!r} any more"
        text = text.replace(old, new)
    path = os.path.join(folder, f"{name}.yaml")
    with open(path, "w") as file:
        file.write(text)
    return path
