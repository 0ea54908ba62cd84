"""Makes minilm.json: embeddings of a few sentences of ours by PyTorch's own BertModel, in double precision.

Run by hand, once, in an environment of its own (the versions used are written into the file):

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers tokenizers
    /tmp/golden/bin/python tests/golden/make_golden.py .cache/minilm tests/golden/minilm.json

The tests then check tests/harness/bert_reference.py against the file, and the daemon against that.
"""
import json
import sys

import tokenizers
import torch
import transformers

SENTENCES = [
    "Hello.",
    "The kettle had been singing for a minute before anyone in the kitchen noticed.",
    "A fused kernel keeps its intermediate values close; an unfused one carries each of them to memory and back.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich, 3.14159 times a day!?",
    "Whoever left the bicycle in the stairwell, please come and take it away: the postwoman tripped over it this morning, "
    "the parcel she carried was mine, and what was in it was a teapot. It is a very small stairwell. There is a shed behind "
    "the house with room for at least nine bicycles, it has a lock, and everyone who lives here was given a key.",
    "no no no no no no no no",
]


def main(model_folder, out_path):
    tokenizer = tokenizers.Tokenizer.from_file(f"{model_folder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = transformers.BertModel.from_pretrained(model_folder, attn_implementation="eager").double().eval()
    ids = [tokenizer.encode(sentence).ids for sentence in SENTENCES]
    longest = max(map(len, ids))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    with torch.no_grad():
        hidden = model(input_ids=padded, attention_mask=mask).last_hidden_state
    weight = mask.unsqueeze(-1).double()
    embedding = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)
    document = {
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "sentences": SENTENCES,
        "input_ids": ids,
        "sentence_embedding": [[round(x, 12) for x in row] for row in embedding.tolist()],
        "first_token_hidden": [[round(x, 12) for x in row[0]] for row in hidden.tolist()],
    }
    with open(out_path, "w") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in document.items()) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
