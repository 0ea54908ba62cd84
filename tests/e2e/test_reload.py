"""Models that come, are replaced and go while others are served: by the repository calls and by SIGHUP."""
import json
import os
import signal
import struct
import tempfile
import threading
import time
import unittest

import grpc
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness import device, triton
from harness.clock import wait_for
from harness.daemon import Daemon, sanitized, sum_by

INFER = "/inference.GRPCInferenceService/ModelInfer"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
Code = grpc.StatusCode
ROW = struct.pack("<48f", *[0.1 * i - 2 for i in range(48)])


def model_text(seed=1, name="block", version="1", max_tokens=64, hidden=96, extra=""):
    return f"""name: {name}
version: "{version}"
weights:
  synthetic: {{seed: {seed}, scale: 0.05}}
fusion: ab
batch: {{max_tokens: {max_tokens}}}
inputs:
  - {{name: x, dtype: fp32, shape: [batch, 48]}}
graph:
  - mlp: {{weights: mlp, hidden: {hidden}, activation: gelu, norm: pre, residual: true, out: y}}
outputs:
  - y
{extra}"""


def request(model="block", rows=1, version=""):
    return pb.infer_request(model, [pb.tensor("x", "FP32", [rows, 48])], [ROW * rows], version=version)


class ReloadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.repository = os.path.join(self.folder, "repository")
        os.mkdir(self.repository)

    def write(self, text, name="block.yaml"):
        """By rename, as files that somebody reads are to be replaced."""
        path = os.path.join(self.folder, name)
        with open(path + ".new", "w") as file:
            file.write(text)
        os.rename(path + ".new", path)
        return path

    def start(self, arguments, control=True, **settings):
        daemon = Daemon(arguments, {"server": {"model_control": control, "repository": self.repository}, **settings}).start()
        self.addCleanup(daemon.kill)
        self.channel = grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(self.channel.close)
        self.call = self.channel.unary_unary(INFER)
        self.client = triton.connect(daemon)
        self.addCleanup(self.client.close)
        return daemon

    def output(self, *arguments, **options):
        reply = pb.fields(self.call(request(*arguments, **options), timeout=60))
        return next(value for field, value in reply if field == 6)

    def index(self, ready=None):
        reply = self.client.get_model_repository_index()
        return {(model.name, model.version): (model.state, model.reason) for model in reply.models}

    def wait_state(self, key, state):
        wait_for(lambda: self.index()[key][0] == state, what=lambda: str(self.index()))

    def fails(self, code, words, call):
        with self.assertRaises(triton.InferenceServerException) as raised:
            call()
        self.assertEqual(raised.exception.status(), f"StatusCode.{code}", raised.exception.message())
        self.assertRegex(raised.exception.message(), words)

    # ---- one at a time ---------------------------------------------------------------------------
    def test_a_load_puts_the_new_version_in_the_place_of_the_old(self):
        daemon = self.start([self.write(model_text(seed=1))])
        before = self.output()
        self.client.load_model("block")
        self.assertEqual(self.output(), before)  # the file is the same
        self.write(model_text(seed=2))
        self.assertEqual(self.output(), before)  # nobody looks at it by himself
        self.client.load_model("block")
        self.assertNotEqual(self.output(), before)
        self.write(model_text(seed=1, version="2"))
        self.client.load_model("block")
        self.assertEqual(self.output(version="2"), before)
        with self.assertRaises(grpc.RpcError) as raised:
            self.output(version="1")
        self.assertEqual(raised.exception.code(), Code.NOT_FOUND)
        self.assertEqual(self.index(), {("block", "2"): ("READY", "")})
        daemon.stop()

    def test_a_broken_file_leaves_the_old_version_serving_and_says_why(self):
        daemon = self.start([self.write(model_text(seed=1))])
        before = self.output()
        broken = [(model_text(extra="colour: red\n"), "colour"), ("name: [", "block.yaml:"),
                  (model_text(name="other"), "expected .block."), (model_text(hidden=0), "hidden"), ("", "block.yaml")]
        for text, words in broken:
            self.write(text)
            code = "FAILED_PRECONDITION" if "other" in text else "INVALID_ARGUMENT"
            self.fails(code, words, lambda: self.client.load_model("block"))
            self.assertEqual(self.output(), before)
            state, reason = self.index()["block", "1"]
            self.assertEqual(state, "READY")
            self.assertRegex(reason, words)
            self.assertTrue(self.client.is_model_ready("block"))
        os.unlink(os.path.join(self.folder, "block.yaml"))
        self.fails("NOT_FOUND", "block.yaml", lambda: self.client.load_model("block"))
        self.assertEqual(self.output(), before)
        self.write(model_text(seed=1))
        self.client.load_model("block")
        self.assertEqual(self.index()["block", "1"], ("READY", ""))
        daemon.wait_line("serves on")
        daemon.stop()

    def test_unload_and_load_again(self):
        daemon = self.start([self.write(model_text(seed=1)), self.write(model_text(seed=3, name="other"), "other.yaml")])
        before = self.output()
        watch = self.channel.unary_stream(WATCH)(pb.chunk(1, "block"))
        self.assertEqual(next(watch), b"\x08\x01")
        self.client.unload_model("block")
        self.assertEqual(next(watch), b"\x08\x02")
        self.wait_state(("block", "1"), "UNAVAILABLE")
        with self.assertRaises(grpc.RpcError) as raised:
            self.output()
        self.assertEqual(raised.exception.code(), Code.UNAVAILABLE)
        self.assertIn("unloaded", raised.exception.details())
        self.assertTrue(self.output("other"))
        self.assertFalse(self.client.is_model_ready("block"))
        self.assertEqual([entry.name for entry in self.client.get_inference_statistics().model_stats], ["other"])
        self.client.load_model("block")
        self.assertEqual(next(watch), b"\x08\x01")
        self.assertEqual(self.output(), before)
        watch.cancel()
        daemon.stop()

    def test_the_repository_has_models_that_nobody_named(self):
        daemon = self.start([self.write(model_text())])
        self.fails("NOT_FOUND", "no late.yaml in server.repository", lambda: self.client.load_model("late"))
        self.write(model_text(seed=5, name="late", max_tokens=256), "repository/late.yaml")  # larger than all before
        watch = self.channel.unary_stream(WATCH)(pb.chunk(1, "late"))
        self.assertEqual(next(watch), b"\x08\x03")
        self.client.load_model("late")
        self.assertEqual(next(watch), b"\x08\x01")
        self.assertEqual(self.output("late", 200)[:192], self.output("late"))
        self.assertTrue(self.output())
        self.assertEqual(self.index(), {("block", "1"): ("READY", ""), ("late", "1"): ("READY", "")})
        self.write(model_text(name="wrong"), "repository/right.yaml")
        self.fails("FAILED_PRECONDITION", "expected .right.", lambda: self.client.load_model("right"))
        for name in ("../block", "a/b", ".hidden", "..", "x\n", "-"):
            self.fails("INVALID_ARGUMENT", "model_name", lambda: self.client.load_model(name))
        watch.cancel()
        daemon.stop()

    def test_what_is_refused(self):
        daemon = self.start([self.write(model_text())])
        self.fails("INVALID_ARGUMENT", "parameters", lambda: self.client.load_model("block", config="{}"))
        self.fails("NOT_FOUND", "no model .nobody. is known", lambda: self.client.unload_model("nobody"))
        self.fails("INVALID_ARGUMENT", "model_name", lambda: self.client.load_model(""))
        load = self.channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        unload = self.channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelUnload")
        for message, code in ((b"\xff\xff", Code.INTERNAL), (pb.chunk(1, "repo") + pb.chunk(2, "block"), Code.INVALID_ARGUMENT),
                              (pb.chunk(2, b"block\0x"), Code.INVALID_ARGUMENT), (pb.chunk(2, b"\xff"), Code.INTERNAL)):
            for call in (load, unload):
                with self.assertRaises(grpc.RpcError) as raised:
                    call(message, timeout=30)
                self.assertEqual(raised.exception.code(), code)
        self.assertTrue(self.client.is_model_ready("block"))
        daemon.stop()

    def test_model_control_is_off_unless_asked_for(self):
        daemon = self.start([self.write(model_text())], control=False)
        self.fails("PERMISSION_DENIED", "server.model_control", lambda: self.client.load_model("block"))
        self.fails("PERMISSION_DENIED", "server.model_control", lambda: self.client.unload_model("block"))
        self.assertEqual(self.index(), {("block", "1"): ("READY", "")})
        daemon.stop()

    # ---- SIGHUP ----------------------------------------------------------------------------------
    def test_sighup_loads_every_model_again_and_ends_nothing(self):
        daemon = self.start([self.write(model_text(seed=1)), self.write(model_text(seed=1, name="other"), "other.yaml")],
                            control=False)
        before = self.output()
        self.write(model_text(seed=2))
        self.write("name: broken", "other.yaml")
        daemon.signal(signal.SIGHUP)
        wait_for(lambda: self.output() != before and self.index()["other", "1"][1], what=daemon.log)
        self.assertEqual(self.output("other"), before)
        self.assertEqual(self.index()["other", "1"][0], "READY")
        for _ in range(5):
            daemon.signal(signal.SIGHUP)
        daemon.stop()

    def test_sighup_follows_the_list_of_models(self):
        names = ("a", "b", "c")
        files = {name: self.write(model_text(seed=i + 1, name=name), f"{name}.yaml") for i, name in enumerate(names)}
        daemon = self.start([], models=[files["a"], files["b"]])
        settings = os.path.join(daemon.folder, "server.yaml")

        def hangup(models, text=None, **changes):
            """New settings, and the lines of the log until all is done."""
            with open(settings + ".new", "w") as file:
                file.write(text or json.dumps({**daemon.settings, "models": models, **changes}))
            os.rename(settings + ".new", settings)
            seen = len(daemon.lines)
            daemon.signal(signal.SIGHUP)
            wait_for(lambda: any("reloaded" in line for line in daemon.lines[seen:]), what=daemon.log)
            return "\n".join(daemon.lines[seen:])

        def serving():
            return {name for (name, _), (state, _) in self.index().items() if state == "READY"}

        answers = {name: self.output(name) for name in ("a", "b")}
        log = hangup([files["b"], files["c"]])  # one goes, one stays, one comes
        self.wait_state(("a", "1"), "UNAVAILABLE")
        self.assertEqual(serving(), {"b", "c"})
        self.assertIn("not in the list of models any more", log)
        self.assertEqual(self.output("b"), answers["b"])
        self.output("c")
        with self.assertRaises(grpc.RpcError) as raised:
            self.output("a")
        self.assertEqual(raised.exception.code(), Code.UNAVAILABLE)
        self.assertEqual(hangup([files["b"], files["c"]]).count("model_loaded"), 2)

        # Mistakes: of the settings (nothing changes), of a new file (the others go on), and both are told.
        log = hangup([], text='{"models": [], "sever": {}}')
        self.assertIn("did you mean", log)
        self.assertIn("nothing is changed", log)
        self.assertNotIn("model_loaded", log)
        hangup([], text="models: [")
        self.assertIn("have no list models", hangup([], text="# the rest is yet to be written\n"))
        self.assertEqual(serving(), {"b", "c"})
        broken = self.write("name: broken", "broken.yaml")
        log = hangup([files["a"], files["b"], broken, os.path.join(self.folder, "none.yaml")])  # a is back, c goes
        self.assertRegex(log, "broken.yaml")
        self.assertRegex(log, "none.yaml")
        self.wait_state(("c", "1"), "UNAVAILABLE")
        self.assertEqual(serving(), {"a", "b"})
        self.assertEqual(self.output("a"), answers["a"])
        self.write(model_text(name="broken"), "broken.yaml")  # and mended
        hangup([files["a"], files["b"], broken])
        self.assertEqual(serving(), {"a", "b", "broken"})

        # A model that moves to another file is replaced in place, and never missing.
        moved = self.write(model_text(seed=7, name="a"), "moved.yaml")
        stop, failures = threading.Event(), []

        def work():
            while not stop.is_set():
                try:
                    self.output("a")
                except grpc.RpcError as error:
                    failures.append(error.details())

        thread = threading.Thread(target=work)
        thread.start()
        hangup([moved, files["b"], broken])
        stop.set()
        thread.join()
        self.assertEqual(failures, [])
        self.assertNotEqual(self.output("a"), answers["a"])
        self.assertEqual(len(self.index()), 4)

        # What only a new start can change is told, and what a client unloaded stays so.
        self.client.unload_model("b")
        self.wait_state(("b", "1"), "UNAVAILABLE")
        log = hangup([moved, files["b"], broken], batch={"max_tokens": 512}, log={"requests": "all"})
        for key in ("batch.max_tokens", "log.requests"):
            self.assertRegex(log, f"restart_needed.*{key} has changed")
        self.assertEqual(serving(), {"a", "broken"})
        self.assertEqual(hangup([]).count("not in the list"), 2)
        self.assertEqual(serving(), set())
        self.assertEqual(hangup([files["b"]]).count("restart_needed"), 0)
        self.assertEqual(self.output("b"), answers["b"])
        daemon.stop()

    # ---- under load ------------------------------------------------------------------------------
    def test_nothing_fails_while_models_are_replaced_under_load(self):
        daemon = self.start([self.write(model_text(seed=1)), self.write(model_text(seed=9, name="still"), "still.yaml")],
                            server={"loops": 2, "model_control": True, "repository": self.repository})
        expected = {}
        for seed in (1, 2):
            self.write(model_text(seed=seed))
            self.client.load_model("block")
            expected[self.output()] = seed
        still = self.output("still")
        stop, problems, counts = threading.Event(), [], {"block": 0, "still": 0}
        lock = threading.Lock()

        def work(model):
            with grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                call, n = channel.unary_unary(INFER), 0
                while not stop.is_set():
                    try:
                        reply = pb.fields(call(request(model), timeout=60))
                    except grpc.RpcError as error:
                        problems.append(f"{model}: {error.code()}: {error.details()}")
                        return
                    value = next(value for field, value in reply if field == 6)
                    if (value not in expected) if model == "block" else (value != still):
                        problems.append(f"{model}: a wrong answer")
                        return
                    n += 1
                with lock:
                    counts[model] += n

        threads = [threading.Thread(target=work, args=(model,)) for model in ("block", "still") * 3]
        for thread in threads:
            thread.start()
        rounds = 6 if sanitized() else 25
        for i in range(rounds):
            # the third has larger batches, so that lanes are replaced beneath the running requests
            self.write(model_text(seed=1 + i % 2, max_tokens=(64, 64, 80 + i)[i % 3]))
            self.client.load_model("block")
        stop.set()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])
        finished = sum_by(daemon.settled(), "fusewire_infer_finished_total", "model")
        for model, least in counts.items():
            self.assertGreaterEqual(finished[model,], least)
        freed = "\n".join(daemon.lines).count("model_freed")
        print(f"{rounds} reloads beneath {counts}; {freed} lines of freed models")
        daemon.stop()

    def race_with_loaders(self, port, names, stop, answers, problems):
        """One connection with 16 calls in flight, of all models in turn; adds up what came back."""
        running, n = {}, 0
        with h2.Connection(port, timeout=60) as connection:
            connection.read_until(lambda: connection.settings)

            def turn():
                nonlocal n
                for stream in [stream for stream in running if connection.stream(stream).done]:
                    name, reply = running.pop(stream), connection.streams.pop(stream)
                    answers[reply.grpc_status] = answers.get(reply.grpc_status, 0) + 1
                    if reply.grpc_status == 0:
                        value = next(value for field, value in pb.fields(reply.data[5:]) if field == 6)
                        if value not in names[name]:
                            problems.append(f"{name}: a wrong answer")
                    elif reply.grpc_status != 14 or "does not serve" not in reply.grpc_message:
                        problems.append(f"{name}: {reply.grpc_status} {reply.grpc_message}")
                while len(running) < 16 and not stop.is_set():
                    name = list(names)[n % len(names)]
                    running[connection.start_call(INFER, request(name))] = name
                    n += 1
                return not running

            while not stop.is_set() and not problems:
                connection.read_until(lambda: turn() or stop.is_set(), 60)
            if not connection.read_until(turn, 60):
                problems.append(f"{len(running)} calls have no answer")

    def test_loads_and_unloads_race_64_callers(self):
        # Two of the four loaders are at the same model.
        seconds = float(os.environ.get("FUSEWIRE_RACE_SECONDS", "1.5"))
        daemon = self.start([self.write(model_text(name=name), f"{name}.yaml") for name in ("a", "b", "c")],
                            server={"loops": 2, "model_control": True, "repository": self.repository})
        names = {}
        for name in ("a", "b", "c"):
            names[name] = []
            for seed in (1, 2):
                self.write(model_text(name=name, seed=seed), f"{name}.yaml")
                self.client.load_model(name)
                names[name].append(self.output(name))
        before = daemon.metrics()
        problems, loads, answers, stop = [], [0] * 4, [{} for _ in range(4)], threading.Event()
        until = time.monotonic() + seconds

        def load(i, name):
            with grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                load, unload = (channel.unary_unary(f"/inference.GRPCInferenceService/RepositoryModel{what}")
                                for what in ("Load", "Unload"))
                try:
                    while time.monotonic() < until or loads[i] < 2:
                        self.write(model_text(name=name, seed=1 + loads[i] % 2, max_tokens=(64, 96)[loads[i] // 2 % 2]),
                                   f"{name}.yaml") if i < 3 else None
                        load(pb.chunk(2, name), timeout=120)
                        if loads[i] % 2:
                            unload(pb.chunk(2, name), timeout=120)
                        loads[i] += 1
                    load(pb.chunk(2, name), timeout=120)
                except grpc.RpcError as error:
                    problems.append(f"loader {i}: {error.code()}: {error.details()}")

        loaders = [threading.Thread(target=load, args=(i, "abcc"[i])) for i in range(4)]
        callers = [threading.Thread(target=self.race_with_loaders, args=(daemon.grpc_port, names, stop, one, problems))
                   for one in answers]
        for thread in loaders + callers:
            thread.start()
        for thread in loaders:
            thread.join()
        stop.set()
        for thread in callers:
            thread.join()
        self.assertEqual(problems, [], daemon.log())
        total = {code: sum(one.get(code, 0) for one in answers) for code in (0, 14)}
        print(f"{loads} loads and unloads beneath {total[0]} answers and {total[14]} refusals of models that were away")
        self.assertGreater(total[0], 0)
        self.assertGreater(total[14], 0)
        metrics = daemon.settled()

        def grown(name):
            return sum(value - before.get(key, 0) for key, value in metrics.items() if key.startswith(name + "{"))

        self.assertEqual(grown("fusewire_infer_accepted_total"), total[0])
        self.assertEqual(grown("fusewire_infer_finished_total"), total[0])
        for name in names:
            self.assertIn(self.output(name), names[name])
        daemon.stop()

    def test_memory_of_replaced_models_comes_back(self):
        daemon = self.start([self.write(model_text(hidden=4096))])
        booked = self.weights_booked(daemon)
        self.assertEqual(booked[0], booked[1])
        for _ in range(4):
            self.client.load_model("block")
        before = daemon.proc("VmRSS")
        for _ in range(12):  # 1.6 MB of weights each, packed for two plans
            self.client.load_model("block")
        if not sanitized():
            wait_for(lambda: daemon.proc("VmRSS") - before < 8 << 10, what="memory of replaced models stays")
        self.wait_booked(daemon, booked)  # not more with each reload
        self.client.unload_model("block")
        self.wait_booked(daemon, (0, 0))
        daemon.stop()

    def weights_booked(self, daemon):
        """Bytes of weights on the device: of all models, and in the device's own ledger."""
        metrics = daemon.metrics()
        where = f'device="{device.name()}:0",kind="weights"}}'
        return tuple(sum(value for key, value in metrics.items() if key.startswith(family) and key.endswith(where))
                     for family in ("fusewire_model_memory_bytes", "fusewire_device_memory_bytes"))

    def wait_booked(self, daemon, expected):
        wait_for(lambda: self.weights_booked(daemon) == expected,
                 what=lambda: f"{self.weights_booked(daemon)}, expected {expected}")

    def test_sigterm_while_models_load_ends_in_good_order(self):
        daemon = self.start([self.write(model_text(hidden=8192))])
        load = self.channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        futures = [load.future(pb.chunk(2, "block")) for _ in range(10)]
        self.output()
        daemon.signal()
        for future in futures:
            self.assertIn(future.code(), (Code.OK, Code.UNAVAILABLE))
        self.assertEqual(daemon.wait(), 0)
