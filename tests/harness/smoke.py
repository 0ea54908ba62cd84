"""smoke.py TREE | --chroot ROOT : start what was built (a package, an image's file system), send requests, stop it."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import numpy as np
from harness import triton
from harness.daemon import Daemon


def package(tree):
    """A relocated package, with no environment but a path to nothing."""
    environment = {"PATH": "/nonexistent"}
    models = [f"{tree}/config/models/{name}.yaml" for name in ("mlp", "attention")]
    return Daemon(models, command=[f"{tree}/bin/fusewired"], environment=environment), [f"{tree}/bin/fusewire"]


def image(root):
    """An image's file system, entered as its user, who may write nowhere in it."""
    enter = ["chroot", "--userspec=65532:65532", root]
    daemon = Daemon([], command=enter + ["/usr/bin/fusewired"])
    daemon.root, daemon.models = root, ["/etc/fusewire/models/mlp.yaml"]
    return daemon, enter + ["/usr/bin/fusewire"]


def main():
    daemon, client_command = image(sys.argv[2]) if sys.argv[1] == "--chroot" else package(sys.argv[1])
    with daemon:
        client = triton.connect(daemon)
        x = np.random.default_rng(1).normal(size=(4, 768)).astype(np.float32)
        result = triton.infer(client, "mlp", {"x": x})
        assert result.as_numpy("y").shape == (4, 768) and np.isfinite(result.as_numpy("y")).all()
        status = subprocess.run(client_command + ["status", "--url", daemon.address], capture_output=True, text=True)
        assert status.returncode == 0, status.stdout + status.stderr
        print(f"serves: an answer in {triton.parameters(result)['total_us']:.0f} us, ready after "
              f"{daemon.ready_seconds * 1e3:.0f} ms, RSS {daemon.proc('VmRSS') / 1024:.1f} MB; "
              f"`fusewire status`: {status.stdout.strip()[:200]!r}")
        client.close()


if __name__ == "__main__":
    main()
