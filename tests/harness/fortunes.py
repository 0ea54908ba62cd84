"""Real texts of unlike lengths: Debian's `fortunes`, read where the package put them and never copied."""
import os
import random

FOLDER = "/usr/share/games/fortunes"


def available():
    return os.path.isdir(FOLDER)


def texts(seed=1):
    """Every fortune as one line, in an order that depends on `seed` alone."""
    found = set()
    for name in sorted(os.listdir(FOLDER)):
        path = os.path.join(FOLDER, name)
        if "." in name or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            found.update(" ".join(text.split()) for text in file.read().split("\n%\n"))
    ordered = sorted(text for text in found if text)
    random.Random(seed).shuffle(ordered)
    return ordered


def tokenized(tokenizer, count, least, most, seed=1):
    """`count` (text, ids) pairs whose token count is in [least, most]."""
    pairs = []
    for text in texts(seed):
        ids = tokenizer.encode(text).ids
        if least <= len(ids) <= most:
            pairs.append((text, ids))
            if len(pairs) == count:
                return pairs
    raise SystemExit(f"only {len(pairs)} fortunes of {least} to {most} tokens, {count} wanted")
