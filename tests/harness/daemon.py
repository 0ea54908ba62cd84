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
from .clock import scaled, wait_for
from .run import ROOT

READY_SECONDS = scaled(30)


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


def sum_by(metrics, name, *labels):
    """{values of these labels: sum over all the others} of a metric."""
    sums = {}
    for key, value in metrics.items():
        if key.startswith(name + "{"):
            found = {label: text for label, text, _ in re.findall(r'(\w+)="((\\.|[^"\\])*)"', key)}
            which = tuple(found[label] for label in labels)
            sums[which] = sums.get(which, 0) + value
    return sums


def all_closed(metrics):
    """For Daemon.settled(): every client's connection is closed, so that nothing more can come of it."""
    return metrics["fusewire_connections_accepted_total"] == metrics["fusewire_connections_closed_total"]


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

    def wait_line(self, *words, seconds=30):
        """The lines of the log that have all of these words, as soon as there is one: they come through a pipe, in their own
        time."""
        return wait_for(lambda: [line for line in list(self.lines) if all(word in line for word in words)], seconds,
                        lambda: f"no line with {words}:\n{self.log()}")

    def alive(self):
        return self.process.poll() is None

    def http(self, path):
        """(status, body) of the admin port."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=scaled(10)) as reply:
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

    def settled(self, enough=lambda metrics: True, seconds=60):
        """The metrics when no request is in flight and the law holds for every model and mode: accepted = finished. What was
        sent may still be in a socket: `enough` says what else must have come. A scrape reads one counter after the other, so
        that the first one that shows the end may show others from before it: it has to be seen twice."""
        metrics, seen = {}, []

        def settled():
            metrics.clear()
            metrics.update(self.metrics())
            seen.append(ended())
            return seen[-2:] == [True, True]

        def ended():
            accepted, finished, in_flight = (sum_by(metrics, f"fusewire_infer_{name}", "model", "version", "fusion") for name in (
                "accepted_total", "finished_total", "in_flight"))
            return not any(in_flight.values()) and accepted == finished and bool(enough(metrics))

        def what():
            counts = {name: value for name, value in metrics.items() if value and re.search(
                "infer_(accepted|finished|in_flight)|^fusewire_connections", name)}
            return f"requests have not ended, or not as was expected: {counts}"

        wait_for(settled, seconds, what)
        return metrics

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
        code = self.process.wait(scaled(seconds))
        self._reader.join(scaled(10))
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
