"""A fusewired to test against: on free ports, with its own configuration, its log kept, its end checked."""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from . import device
from .run import ROOT

READY_SECONDS = 60  # a sanitizer build on a busy machine


def daemon_path():
    return os.environ.get("FUSEWIRED", f"{ROOT}/build/release/server/fusewired")


def client_path():
    return os.environ.get("FUSEWIRE", f"{ROOT}/build/release/client/fusewire")


def sanitized():
    return bool(os.environ.get("FUSEWIRE_SANITIZER"))


def merge(base, extra):
    out = dict(base)
    for key, value in extra.items():
        out[key] = merge(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


class Daemon:
    """with Daemon(["model.yaml"], {"batch": {"max_tokens": 64}}) as daemon: ... daemon.grpc_port ..."""

    def __init__(self, models, settings=None, command=None, environment=None):
        self.models = [os.path.abspath(model) for model in models]
        self.settings = merge({"server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}, **device.settings()}, settings or {})
        self.command = command or [daemon_path()]
        self.environment = environment
        self.root = ""  # of a chroot that `command` enters
        self.lines, self.process = [], None
        self.grpc_port = self.admin_port = None

    def start(self):
        self.folder = tempfile.mkdtemp(prefix="fusewire-test-", dir=f"{self.root}/tmp" if self.root else None)
        os.chmod(self.folder, 0o755)
        path = os.path.join(self.folder, "server.yaml")
        with open(path, "w") as file:
            json.dump(self.settings, file)  # JSON is YAML
        config = path.removeprefix(self.root)
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self.command + ["--config", config] + self.models, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", env=self.environment)
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if not self._ready.wait(READY_SECONDS) or self.grpc_port is None:
            self.kill()
            raise AssertionError("the daemon did not become ready:\n" + self.log())
        self.ready_seconds = time.monotonic() - self.started
        return self

    def _read_log(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            ready = re.search(r"ready\b.*grpc=\S*:(\d+)(?:.*admin=\S*:(\d+))?", line)
            if ready:
                self.grpc_port = int(ready.group(1))
                self.admin_port = int(ready.group(2)) if ready.group(2) else None
                self._ready.set()
        self._ready.set()

    def log(self):
        return "\n".join(self.lines[-60:])

    @property
    def address(self):
        return f"127.0.0.1:{self.grpc_port}"

    def alive(self):
        return self.process.poll() is None

    def http(self, path):
        """(status, body) of the admin port."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        status, text = self.http("/metrics")
        assert status == 200, text
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def proc(self, name):
        """A field of /proc/PID/status, in KiB or as a number."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(rf"^{name}:\s+(\d+)", file.read(), re.M).group(1))

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self):
        """SIGTERM, and the end that a healthy daemon comes to: exit code 0, no word from a sanitizer."""
        if self.alive():
            self.signal()
        try:
            code = self.wait()
        finally:
            self.kill()
        assert code == 0, f"exit code {code}:\n{self.log()}"
        complaints = [line for line in self.lines if "Sanitizer" in line or "runtime error" in line]
        assert not complaints, self.log()

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        if kind:
            self.kill()
            print("daemon log:\n" + self.log())
        else:
            self.stop()


def check(arguments, environment=None):
    """`fusewired --check ...`: (exit code, output). Without a GPU: what is wrong with a file does not depend on it, and half a
    second for each of many files would be its start."""
    environment = {**(os.environ if environment is None else environment), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([daemon_path(), "--check"] + list(arguments), capture_output=True, text=True,
                          timeout=READY_SECONDS, errors="replace", env=environment)
    return done.returncode, done.stdout + done.stderr
