"""Which device the daemon under test is told to use: FUSEWIRE_TEST_DEVICE=cpu|cuda, else what it finds by itself."""
import os


ASKED = os.environ.get("FUSEWIRE_TEST_DEVICE", "")


def settings():
    return {"device": {"kind": ASKED}} if ASKED else {}


def name():
    """What replies call it. Nothing asked for: the tests run where there is no GPU, and `auto` is the CPU."""
    return ASKED or "cpu"


def on_gpu():
    return name() == "cuda"


def computes():
    """{compute dtype: why it is left out, or None}."""
    if on_gpu():
        return {"fp32": None, "bf16": None, "fp16": None}
    return {"fp32": None, "bf16": None,
            "fp16": "the CPU back end has no fp16 products"}
