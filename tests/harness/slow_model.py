"""tests/e2e/models/slow.yaml for the device under test: a model whose requests take long enough to be waited for, cut off and
overtaken. On a GPU one of its layers takes two or three milliseconds, so there it has more of them.
"""
import os
import tempfile

from harness import device
from harness.run import ROOT

PATH = os.path.join(ROOT, "tests", "e2e", "models", "slow.yaml")
GPU_LAYERS = 100


def write(case):
    """The path of the model file; one that is made goes when the test case is over (`case`: its instance)."""
    if not device.on_gpu():
        return PATH
    folder = tempfile.TemporaryDirectory()
    case.addCleanup(folder.cleanup)
    with open(PATH) as file:
        text = file.read()
    for old, new in {"times: 4": f"times: {GPU_LAYERS}", "from: y.3": f"from: y.{GPU_LAYERS - 1}"}.items():
        case.assertIn(old, text)
        text = text.replace(old, new)
    path = os.path.join(folder.name, "slow.yaml")
    with open(path, "w") as file:
        file.write(text)
    return path
