#!/usr/bin/env python3
"""Sentence embeddings from a Fusewire daemon with the stock Triton client: pip install 'tritonclient[grpc]' tokenizers

    embed.py --server 127.0.0.1:8001 --model minilm --tokenizer .cache/minilm/tokenizer.json SENTENCE...

Prints the nearest of the other sentences for each one. Without sentences it reads them from standard input, one a line.
"""
import argparse
import sys

import numpy as np
import tritonclient.grpc as triton
from tokenizers import Tokenizer


def open_tokenizer(path, most_tokens=256):
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_truncation(most_tokens)
    tokenizer.enable_padding(pad_id=0)
    return tokenizer


def infer_inputs(ids, mask):
    """The two tensors of Hugging Face's export, [batch, seq] INT64."""
    inputs = [triton.InferInput("input_ids", ids.shape, "INT64"), triton.InferInput("attention_mask", mask.shape, "INT64")]
    inputs[0].set_data_from_numpy(ids)
    inputs[1].set_data_from_numpy(mask)
    return inputs


def pad(sequences):
    """Token id lists of unlike length as [batch, longest] and its mask."""
    longest = max(map(len, sequences))
    ids = np.zeros((len(sequences), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, :len(sequence)] = sequence
        mask[row, :len(sequence)] = 1
    return ids, mask


def embed(client, model, ids, mask, parameters=None):
    """[batch, hidden] float32, each row of length 1, and the reply's cost parameters."""
    reply = client.infer(model, infer_inputs(ids, mask), parameters=parameters,
                         outputs=[triton.InferRequestedOutput("sentence_embedding")])
    cost = {name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in reply.get_response().parameters.items()}
    return reply.as_numpy("sentence_embedding"), cost


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("sentences", nargs="*")
    arguments.add_argument("--server", default="127.0.0.1:8001")
    arguments.add_argument("--model", default="minilm")
    arguments.add_argument("--tokenizer", required=True)
    given = arguments.parse_args()
    sentences = [text for text in given.sentences or map(str.strip, sys.stdin) if text.strip()]
    if not sentences:
        arguments.error("no sentence to embed: give some as arguments, or one a line on standard input")
    encoded = open_tokenizer(given.tokenizer).encode_batch(sentences)
    client = triton.InferenceServerClient(given.server)
    try:
        vectors, cost = embed(client, given.model, *pad([e.ids[:sum(e.attention_mask)] for e in encoded]))
    except triton.InferenceServerException as error:
        sys.exit(f"{given.server}: {error}")
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -1)
    for row, sentence in enumerate(sentences):
        best = likeness[row].argmax()
        print(f"{likeness[row, best]:.3f}  {sentence}\n       {sentences[best]}" if len(sentences) > 1 else sentence)
    print("cost:", ", ".join(f"{name}={value}" for name, value in sorted(cost.items())))


if __name__ == "__main__":
    main()
