"""BERT encoders in double precision, one sequence at a time, written for being obviously right.

Shares nothing with the daemon: weights are read by hand, nothing is packed, padded, fused or batched. It is itself
checked against embeddings that PyTorch's own BertModel made (tests/golden).
"""
import hashlib
import json
import math
import multiprocessing
import os

import numpy as np

from . import safetensors_file

# erf by a table of math.erf and a Taylor step from the nearest entry: |h| <= 2^-11, terms to h^4, error below 1e-15.
_ERF_STEP = 1.0 / 1024
_ERF_END = 6 * 1024  # erf(6) is 1 in double precision
_ERF_TABLE = np.array([math.erf(i * _ERF_STEP) for i in range(-_ERF_END, _ERF_END + 1)])
_ERF_SLOPE = 2.0 / math.sqrt(math.pi) * np.exp(-((np.arange(-_ERF_END, _ERF_END + 1) * _ERF_STEP) ** 2))


def erf(x):
    index = np.rint(np.clip(x, -6, 6) * (1 / _ERF_STEP))
    a = index * _ERF_STEP
    h = np.clip(x, -6, 6) - a
    index = index.astype(np.intp) + _ERF_END
    a2 = a * a
    series = 1 + h * (-a + h * ((2 * a2 - 1) / 3 + h * (a * (3 - 2 * a2) / 6)))
    return _ERF_TABLE[index] + _ERF_SLOPE[index] * (h * series)


def gelu(x):
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def layer_norm(x, gamma, beta, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * gamma + beta


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class BertReference:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as file:
            self.config = json.load(file)
        path = os.path.join(folder, "model.safetensors")
        self.weights = {k: v.astype(np.float64) for k, v in safetensors_file.load(path).items() if v.dtype.kind == "f"}
        with open(path, "rb") as file:
            self.fingerprint = hashlib.sha256(file.read()).hexdigest()[:16]

    def _linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def _norm(self, x, name):
        return layer_norm(x, self.weights[name + ".weight"], self.weights[name + ".bias"], self.config["layer_norm_eps"])

    def _attention(self, x, name):
        heads = self.config["num_attention_heads"]
        tokens, hidden = x.shape
        q, k, v = (
            self._linear(x, f"{name}.self.{part}").reshape(tokens, heads, hidden // heads).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(hidden // heads)
        context = (softmax(scores) @ v).transpose(1, 0, 2).reshape(tokens, hidden)
        return self._norm(x + self._linear(context, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def hidden(self, ids, positions=None, types=None):
        """[tokens, hidden] of one sequence: its kept tokens, and where each stood in the sequence."""
        ids = np.asarray(ids, np.int64)
        positions = np.arange(len(ids)) if positions is None else np.asarray(positions)
        types = np.zeros(len(ids), np.int64) if types is None else np.asarray(types)
        w = self.weights
        x = (w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][positions]
             + w["embeddings.token_type_embeddings.weight"][types])
        x = self._norm(x, "embeddings.LayerNorm")
        for i in range(self.config["num_hidden_layers"]):
            name = f"encoder.layer.{i}"
            x = self._attention(x, f"{name}.attention")
            inner = gelu(self._linear(x, f"{name}.intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        return x

    def embed(self, ids, positions=None, types=None):
        """Mean over the kept tokens, scaled to length 1."""
        mean = self.hidden(ids, positions, types).mean(axis=0)
        return mean / np.linalg.norm(mean)

    def masked(self, ids, mask, types=None):
        """What a server must answer for one row of a padded batch: (hidden with zeros where masked, embedding)."""
        kept = np.flatnonzero(mask)
        out = np.zeros((len(ids), self.config["hidden_size"]))
        if not len(kept):
            return out, np.zeros(self.config["hidden_size"])
        types = None if types is None else np.asarray(types)[kept]
        rows = self.hidden(np.asarray(ids)[kept], kept, types)
        out[kept] = rows
        mean = rows.mean(axis=0)
        return out, mean / np.linalg.norm(mean)


_shared = None  # the reference of forked workers: inherited, never pickled


def _embed_shared(ids):
    return _shared.embed(ids)


def cached_embeddings(reference, sequences, cache_folder, progress=None):
    """Embeddings of many sequences, kept on disk by a hash of the weights and of the sequences. One process for each
    core, each with one thread: set OPENBLAS_NUM_THREADS=1 before numpy is imported."""
    key = hashlib.sha256(reference.fingerprint.encode())
    for ids in sequences:
        key.update(np.asarray(ids, np.int32).tobytes() + b"|")
    path = os.path.join(cache_folder, f"reference-{key.hexdigest()[:16]}.npy")
    if os.path.exists(path):
        return np.load(path)
    global _shared
    _shared, rows = reference, []
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        for row in pool.imap(_embed_shared, sequences, chunksize=4):
            rows.append(row)
            if progress:
                progress(len(rows), len(sequences))
    embeddings = np.array(rows)
    os.makedirs(cache_folder, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.npy"
    np.save(temporary, embeddings)
    os.replace(temporary, path)
    return embeddings
