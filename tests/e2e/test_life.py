"""A daemon's life: start, deadlines and cancellation in the queue, vanished clients, SIGTERM under load, what it counts."""
import os
import re
import signal
import socket
import struct
import tempfile
import threading
import time
import unittest

import grpc
from harness import device, freeze, h2_frames as h2
from harness import protobuf_bytes as pb, safetensors_file, slow_model, tiny_bert
from harness.clock import scaled, wait_for
from harness.daemon import Daemon, all_closed, daemon_path, sanitized
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
INFER = "/inference.GRPCInferenceService/ModelInfer"
HEALTH = "/grpc.health.v1.Health/Check"
Code = grpc.StatusCode
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


def block_request(rows=1):
    return pb.infer_request("block", [pb.tensor("x", "FP32", [rows, 48])], [bytes(192 * rows)])


# Three of these one behind the other outlast the deadline of 50 ms several times on any machine; twice the rows are four times
# the work. A sanitizer makes the attention kernel up to twenty times slower (ThreadSanitizer more), a GPU makes it quick.
SLOW_ROWS = {"": 8192 if device.on_gpu() else 4096, "thread": 1024}.get(os.environ.get("FUSEWIRE_SANITIZER", ""), 2048)


def slow_request(rows=SLOW_ROWS):
    return pb.infer_request("slow", [pb.tensor("x", "FP32", [1, rows, 64])], [bytes(256 * rows)])


def model_metric(metrics, name, model):
    """Sum over the fusion modes of a model."""
    return sum(value for key, value in metrics.items() if key.startswith(name + "{") and f'model="{model}"' in key)


class Client:
    def __init__(self, daemon):
        # A subchannel of its own, or all clients of this process would share one connection.
        self.channel = grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.infer = self.channel.unary_unary(INFER)
        self.health = self.channel.unary_unary(HEALTH)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()


class LifeTest(unittest.TestCase):
    def model_file(self, name):
        return slow_model.write(self) if name == "slow" else f"{MODELS}/{name}.yaml"

    def start(self, names=("block",), settings=None):
        daemon = Daemon([self.model_file(name) for name in names], settings).start()
        self.addCleanup(daemon.kill)
        return daemon

    def assert_conservation(self, daemon, model, sent=None, enough=lambda metrics: True):
        """accepted = ok + failed + cancelled + in flight, in /metrics; equal to what the clients counted. `enough`: all that was
        sent has been read."""
        metrics = daemon.settled(enough)
        self.assert_statistics(daemon, model, metrics)
        if sent is not None:
            self.assertEqual(model_metric(metrics, "fusewire_infer_accepted_total", model), sent)
        return metrics

    def assert_statistics(self, daemon, model, metrics):
        """ModelStatistics tells what /metrics tells: success, and fail with the cancelled ones in it."""
        def finished(code):
            return sum(value for key, value in metrics.items() if key.startswith("fusewire_infer_finished_total{")
                       and f'model="{model}"' in key and f'code="{code}"' in key)

        with grpc.insecure_channel(daemon.address) as channel:
            reply = channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")(pb.chunk(1, model), timeout=30)
        entry = dict(pb.fields(dict(pb.fields(reply))[1]))
        stats = dict(pb.fields(entry[6]))
        counts = [dict(pb.fields(stats[field])).get(1, 0) for field in (1, 2)]
        everything = model_metric(metrics, "fusewire_infer_finished_total", model)
        self.assertEqual(counts, [finished("OK"), everything - finished("OK")])
        response = dict(pb.fields(dict(pb.fields(entry[9]))[2]))
        self.assertEqual(dict(pb.fields(response[6])).get(1, 0), finished("CANCELLED"))

    # ---- start -----------------------------------------------------------------------------------
    def test_start_memory_and_idleness(self):
        daemon = self.start()
        print(f"start to ready {daemon.ready_seconds * 1e3:.0f} ms, RSS {daemon.proc('VmRSS') / 1024:.1f} MB, "
              f"{daemon.proc('Threads')} threads")
        with Client(daemon) as client:
            client.infer(block_request())
            before, seconds = daemon.cpu_seconds(), 1.0
            time.sleep(seconds)
            busy = (daemon.cpu_seconds() - before) / seconds
            print(f"idle with one connection: {busy * 100:.1f} % of a core")
            self.assertLess(busy, 0.2, "an idle daemon burns a core")
        daemon.stop()

    def test_streams_that_are_closed_are_nobody_elses(self):
        command = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", daemon_path()]
        daemon = Daemon([self.model_file("block")], {"log": {"requests": "all"}}, command=command).start()
        self.addCleanup(daemon.kill)
        with Client(daemon) as client:
            for _ in range(20):  # each a line of the log
                self.assertTrue(client.infer(block_request(), timeout=scaled(30)))
        for stream in (0, 2):
            self.assertEqual(os.readlink(f"/proc/{daemon.process.pid}/fd/{stream}"), "/")
        daemon.stop()

    def test_a_port_in_use_is_a_clear_error(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            daemon = Daemon([f"{MODELS}/block.yaml"], {"server": {"listen": address}})
            with self.assertRaises(AssertionError):
                daemon.start()
            self.assertIn(address, "\n".join(daemon.lines))
            self.assertNotEqual(daemon.process.returncode, 0)

    def test_help_version_and_wrong_options(self):
        import subprocess

        from harness.daemon import daemon_path

        for options, code, words in ((["--help"], 0, "--check"), (["--version"], 0, r"\d+\.\d+"), (["--chekc"], 2, "--chekc")):
            done = subprocess.run([daemon_path()] + options, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertTrue(re.search(words, done.stdout + done.stderr), done.stdout + done.stderr)

    # ---- health ----------------------------------------------------------------------------------
    def test_health_by_grpc_and_by_http(self):
        daemon = self.start()
        with Client(daemon) as client:
            self.assertEqual(client.health(b""), SERVING)
            self.assertEqual(client.health(pb.chunk(1, "inference.GRPCInferenceService")), SERVING)
            with self.assertRaises(grpc.RpcError) as raised:
                client.health(pb.chunk(1, "no.such.Service"))
            self.assertEqual(raised.exception.code(), Code.NOT_FOUND)
        for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 200), ("/metrics", 200), ("/nothing", 404)):
            self.assertEqual(daemon.http(path)[0], status, path)
        daemon.stop()

    def test_metrics_are_prometheus_text_with_every_series_from_the_start(self):
        daemon = self.start()
        _, text = daemon.http("/metrics")
        line = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]\w*="(\\.|[^"\\])*",?)*\})? (NaN|[-+]?(Inf|\d[\d.e+-]*))')
        helped, typed = set(), set()
        for text_line in text.splitlines():
            if text_line.startswith("# HELP "):
                helped.add(text_line.split()[2])
            elif text_line.startswith("# TYPE "):
                self.assertNotIn(text_line.split()[2], typed, "a family in two places")
                typed.add(text_line.split()[2])
            elif text_line:
                self.assertRegex(text_line, line)
        self.assertEqual(helped, typed)
        before = set(daemon.metrics())
        with Client(daemon) as client:
            client.infer(block_request())
        metrics = self.assert_conservation(daemon, "block", 1)
        self.assertEqual(before, set(metrics), "a series appeared with the first request")
        buckets = [value for key, value in metrics.items() if key.startswith("fusewire_total_seconds_bucket") and '"on"' in key]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(buckets[-1], 1)
        daemon.stop()

    # ---- deadlines and cancellation --------------------------------------------------------------
    def occupy(self, client, count=3):
        """Calls that keep the device busy for a while; the futures."""
        return [client.infer.future(slow_request()) for _ in range(count)]

    def wait_in_flight(self, daemon, model, count):
        wait_for(lambda: model_metric(daemon.metrics(), "fusewire_infer_in_flight", model) >= count,
                 what=f"never {count} requests of {model} in flight")

    def test_a_deadline_that_passes_in_the_queue_is_answered_at_its_time_and_never_runs(self):
        daemon = self.start(("slow", "block"))
        with Client(daemon) as busy, Client(daemon) as client:
            slow = self.occupy(busy)
            self.wait_in_flight(daemon, "slow", 3)
            # Raw frames: a gRPC library would time the call itself and never hear the daemon's answer.
            with h2.Connection(daemon.grpc_port) as connection:
                for served in range(5):  # the first may be more urgent than slow calls that have not begun yet
                    started = time.monotonic()
                    stream = connection.start_call(INFER, block_request(), [("grpc-timeout", "50m")])
                    connection.wait(stream, 60)
                    waited = time.monotonic() - started
                    if connection.stream(stream).grpc_status != 0:
                        break
                self.assertEqual(connection.stream(stream).grpc_status, 4, connection.stream(stream).blocks)
                self.assertGreaterEqual(waited, 0.045)
            running = [future for future in slow if not future.done()]
            print(f"a deadline of 50 ms was answered after {waited * 1e3:.0f} ms, {len(running)} of 3 slow calls still running")
            self.assertTrue(running, "the slow calls were too quick for this test")
            for future in slow:
                future.result(120)
            metrics = self.assert_conservation(daemon, "block", served + 1)
            self.assertEqual(model_metric(metrics, "fusewire_batches_total", "block"), served)
            client.infer(block_request(), timeout=60)
        daemon.stop()

    def test_calls_cancelled_in_the_queue_never_run(self):
        daemon = self.start(("slow", "block"))
        with Client(daemon) as busy, Client(daemon) as client:
            slow = self.occupy(busy)
            self.wait_in_flight(daemon, "slow", 3)
            waiting = [client.infer.future(block_request()) for _ in range(20)]
            self.wait_in_flight(daemon, "block", 20)
            for future in waiting:
                future.cancel()
            for future in slow:
                future.result(120)
            metrics = self.assert_conservation(daemon, "block", 20)
            finished = {key: value for key, value in metrics.items() if key.startswith("fusewire_infer_finished_total")}
            cancelled = sum(value for key, value in finished.items() if 'model="block"' in key and "CANCELLED" in key)
            self.assertEqual(cancelled, 20)
            self.assertEqual(model_metric(metrics, "fusewire_batches_total", "block"), 0)
            client.infer(block_request(), timeout=60)
        daemon.stop()

    def test_a_full_queue_is_resource_exhausted_at_once(self):
        daemon = self.start(("slow", "block"), {"batch": {"queue_requests": 8}})
        with Client(daemon) as busy, Client(daemon) as client:
            slow = self.occupy(busy, 2)
            self.wait_in_flight(daemon, "slow", 2)
            futures = [client.infer.future(block_request(), timeout=120) for _ in range(60)]
            codes = [future.code() for future in futures]
            for future in slow:
                future.result(120)
            self.assertEqual(set(codes), {Code.OK, Code.RESOURCE_EXHAUSTED})
            self.assert_conservation(daemon, "block", 60)
        daemon.stop()

    def test_deadlines_around_the_service_time_end_each_call_once(self):
        daemon = self.start()
        count = 300 if sanitized() else 2048
        with Client(daemon) as client:
            futures = [client.infer.future(block_request(16), timeout=0.0002 * (i % 40)) for i in range(count)]
            codes = {}
            for future in futures:
                codes[future.code()] = codes.get(future.code(), 0) + 1
            print("deadlines around the service time:", {code.name: n for code, n in codes.items()})
            self.assertLessEqual(set(codes), {Code.OK, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED})
            self.assertTrue(client.infer(block_request(), timeout=60))
            self.assert_conservation(daemon, "block")
        daemon.stop()

    # ---- clients that vanish ---------------------------------------------------------------------
    def test_clients_that_vanish_at_any_point(self):
        daemon = self.start(("slow", "block"))
        request = h2.grpc_message(block_request(64))
        with Client(daemon) as client:
            connection = h2.Connection(daemon.grpc_port)
            whole = (h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, connection.encoder.encode(
                h2.grpc_headers(INFER))) + h2.frame(h2.DATA, h2.END_STREAM, 1, request))
            connection.close()
            cuts = list(range(0, 300, 7)) + list(range(300, len(whole), 997)) + [len(whole)]
            for cut in cuts:
                with socket.create_connection(("127.0.0.1", daemon.grpc_port)) as half:
                    half.sendall(whole[:cut])
                    if cut % 2:  # a reset in place of an orderly end
                        half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # and with the request in the queue, and with it running
            for _ in range(3):
                vanishing = h2.Connection(daemon.grpc_port)
                vanishing.start_call(INFER, slow_request(1024)[:60000])
                vanishing.start_call(INFER, block_request())
                vanishing.close()
            self.assertTrue(client.infer(block_request(), timeout=60))
        self.assert_conservation(daemon, "block", enough=all_closed)
        daemon.stop()

    def test_a_peer_that_never_reads_costs_others_nothing(self):
        daemon = self.start(("echo", "block"))
        with Client(daemon) as client:
            deaf = h2.Connection(daemon.grpc_port, settings=[(4, 0)], window_updates=False)
            data = bytes(32768)
            request = pb.infer_request("echo", [pb.tensor("x", "FP32", [1, 32, 256])], [data])
            for _ in range(1 if sanitized() else 2):
                deaf.start_call(INFER, request)
            for _ in range(50):
                self.assertTrue(client.infer(block_request(), timeout=60))
            deaf.close()
            self.assert_conservation(daemon, "block", 50)
            self.assert_conservation(daemon, "echo")
        daemon.stop()

    # ---- SIGTERM ---------------------------------------------------------------------------------
    def test_sigterm_under_load_loses_nothing_that_was_accepted(self):
        for round_number in range(2):
            daemon = self.start()
            answers = {"ok": 0, "refused": 0}
            failures = []
            lock = threading.Lock()

            def work():
                with Client(daemon) as client:
                    while True:
                        try:
                            client.infer(block_request(4), timeout=60)
                            with lock:
                                answers["ok"] += 1
                        except grpc.RpcError as error:
                            with lock:
                                answers["refused"] += 1
                                if error.code() != Code.UNAVAILABLE:
                                    failures.append(f"{error.code()}: {error.details()}")
                            return

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            wait_for(lambda: answers["ok"] >= 100 or failures, 60)
            daemon.signal()
            code = daemon.wait(60)
            for thread in threads:
                thread.join()
            self.assertEqual(code, 0, daemon.log())
            self.assertEqual(failures, [])
            self.assertLessEqual(answers["refused"], 8)
            print(f"round {round_number}: {answers['ok']} answers, then each of 8 clients was refused by UNAVAILABLE")

    def drain_beneath_64_calls(self, round_number):
        """One connection, by frames, since a library would hide a lost answer behind the UNAVAILABLE of a refused one: never
        fewer than 64 calls in flight until the last GOAWAY."""
        delay = 0.15
        daemon = self.start(settings={"server": {"drain_delay": int(delay * 1000), "drain_timeout": 60000}})
        with h2.Connection(daemon.grpc_port, timeout=60) as connection:
            streams, running, request = [], set(), block_request(8)
            watch = connection.start_call("/grpc.health.v1.Health/Watch", b"")
            goaway_seen = []

            def look():
                """New calls in the place of those that have ended."""
                if connection.goaways:
                    goaway_seen.append(time.monotonic())
                running.difference_update([one for one in running if connection.stream(one).done])
                while len(running) < 64 and len(connection.goaways) < 2 and not connection.closed:
                    streams.append(connection.start_call(INFER, request))
                    running.add(streams[-1])

            self.assertTrue(connection.read_until(lambda: look() or len(streams) > 256))
            self.assertTrue(connection.stream(watch).data.endswith(SERVING))
            signalled = time.monotonic()
            daemon.signal()
            self.assertTrue(connection.read_until(lambda: look() or connection.closed, 60))
            self.assertEqual([code for _, code, _ in connection.goaways], [0, 0])
            self.assertEqual(connection.goaways[0][0], 0x7FFFFFFF)
            last = connection.goaways[1][0]
            accepted = [number for number in streams if number <= last]
            lost = [number for number in accepted if connection.stream(number).grpc_status != 0]
            self.assertEqual(lost, [], f"round {round_number}: {len(accepted)} calls were accepted")
            self.assertEqual(connection.stream(watch).grpc_status, 14)
            self.assertGreaterEqual(goaway_seen[0] - signalled, delay - 0.002)  # timers count whole milliseconds
            order = [kind for kind, _, stream, payload in connection.frames
                     if kind == h2.GOAWAY or (kind == h2.DATA and stream == watch and payload.endswith(NOT_SERVING))]
            self.assertEqual(order, [h2.DATA, h2.GOAWAY, h2.GOAWAY])
            self.assertEqual(daemon.wait(60), 0, daemon.log())
            self.assertLess(time.monotonic() - signalled, delay + scaled(5))
            return len(accepted)

    def test_ten_sigterms_beneath_64_calls_lose_nothing_that_was_accepted(self):
        answered = [self.drain_beneath_64_calls(i) for i in range(3 if sanitized() else 10)]
        print(f"calls accepted, all of them answered: {answered}")

    def test_a_second_sigterm_ends_it_at_once(self):
        for settings in ({"drain_delay": 60000}, {"drain_timeout": 60000}):
            daemon = self.start(settings={"server": settings})
            with h2.Connection(daemon.grpc_port) as connection:
                stream = connection.send_headers(h2.grpc_headers(INFER))  # a call that never ends its request
                connection.send_data(stream, h2.grpc_message(bytes(100))[:50], end_stream=False)
                self.assertTrue(connection.read_until(lambda: connection.settings))
                daemon.signal()
                if "drain_timeout" in settings:
                    self.assertTrue(connection.read_until(lambda: connection.goaways, 30))
                else:
                    wait_for(lambda: daemon.http("/v2/health/ready")[0] == 503)
                time.sleep(0.1)
                self.assertTrue(daemon.alive())
                daemon.signal()
                began = time.monotonic()
                self.assertEqual(daemon.wait(30), 1, daemon.log())  # a call was cut off
                self.assertLess(time.monotonic() - began, scaled(5))  # of 60 s

    def test_sigterm_answers_the_calls_in_flight_and_says_goaway_twice(self):
        daemon = self.start(("slow",))
        with h2.Connection(daemon.grpc_port, timeout=120) as connection, h2.Connection(daemon.grpc_port) as idle:
            idle.call(HEALTH, b"")
            connection.read_until(lambda: connection.settings)
            self.assertGreaterEqual(connection.settings[4], 1 << 20)  # room for the request in one go
            stream = connection.start_call(INFER, slow_request(min(4000, SLOW_ROWS)))
            self.wait_in_flight(daemon, "slow", 1)
            daemon.signal()
            self.assertTrue(connection.wait(stream, 120))
            self.assertEqual(connection.stream(stream).grpc_status, 0)
            self.assertTrue(connection.wait_closed(60))
            for name, one in (("busy", connection), ("idle", idle)):
                one.wait_closed(60)
                self.assertEqual([code for _, code, _ in one.goaways], [0, 0], name)
                self.assertEqual(one.goaways[0][0], 0x7FFFFFFF, name)
        self.assertEqual(daemon.wait(), 0)

    def test_the_drain_delay_serves_on_with_health_not_serving(self):
        daemon = self.start(settings={"server": {"drain_delay": 60000}})
        with Client(daemon) as client:
            client.infer(block_request())
            daemon.signal()
            wait_for(lambda: client.health(b"") == NOT_SERVING, what="health never said NOT_SERVING")
            self.assertEqual(daemon.http("/v2/health/ready")[0], 503)
            self.assertEqual(daemon.http("/v2/health/live")[0], 200)
            self.assertTrue(client.infer(block_request(), timeout=10))
            daemon.signal()  # has waited long enough: nothing is in flight
            self.assertEqual(daemon.wait(), 0)

    def test_the_drain_is_bounded_in_time(self):
        daemon = self.start(("slow",), {"server": {"drain_timeout": 100}})
        with h2.Connection(daemon.grpc_port) as connection:
            stream = connection.send_headers(h2.grpc_headers(INFER))  # a call that never ends its request
            connection.send_data(stream, h2.grpc_message(bytes(100))[:50], end_stream=False)
            connection.read_until(lambda: connection.settings)
            daemon.signal(signal.SIGTERM)
            daemon.wait(30)

    def test_weights_that_are_overwritten_or_cut_while_they_serve_change_no_answer(self):
        ids = struct.pack("<4q", 1, 2, 3, 4)
        message = pb.infer_request("tiny", [pb.tensor("input_ids", "INT64", [1, 4])], [ids])
        with tempfile.TemporaryDirectory() as folder:
            model, path = tiny_bert.write(folder), os.path.join(folder, "model.safetensors")
            with open(path, "rb") as file:
                (header_bytes,) = struct.unpack("<Q", file.read(8))
                header, data = file.read(header_bytes), file.read()
            header += b" " * (-len(header) % 64)  # as other writers do: tables could be read where they are
            safetensors_file.write_raw(path, header, data)
            with Daemon([model]) as daemon, grpc.insecure_channel(daemon.address) as channel:
                call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

                def outputs():
                    return [value for field, value in pb.fields(call(message, timeout=30)) if field == 6]

                before = outputs()
                with open(path, "r+b") as file:
                    file.write(b"\x11" * (8 + len(header) + len(data)))
                self.assertEqual(outputs(), before)
                os.truncate(path, 0)
                self.assertEqual(outputs(), before)

    def test_connections_leave_descriptors_for_the_admin_port(self):
        most = 160 if device.on_gpu() else 64  # a GPU's driver has dozens open by itself
        command = ["/bin/sh", "-c", f'ulimit -n {most}; exec "$0" "$@"', daemon_path()]
        with Daemon([f"{MODELS}/block.yaml"], command=command) as daemon:
            crowd = [socket.create_connection(("127.0.0.1", daemon.grpc_port), 5) for _ in range(most + 6)]
            self.assertEqual(daemon.http("/v2/health/ready")[0], 200)
            self.assertIn("limits.connections", daemon.log())
            for one in crowd:
                one.close()

    def test_one_address_cannot_keep_others_from_the_admin_port(self):
        with Daemon([f"{MODELS}/block.yaml"]) as daemon:
            crowd = []
            for _ in range(80):
                one = socket.create_connection(("127.0.0.1", daemon.admin_port), 5, source_address=("127.0.0.2", 0))
                one.sendall(b"GET /metrics HTTP/1.1\r\nX: ")  # and never an end
                crowd.append(one)
            # Before the daemon's own 10 s after which silent connections are closed.
            with socket.create_connection(("127.0.0.1", daemon.admin_port), 5) as probe:
                probe.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertIn(b"200 OK", probe.recv(1000))
            for one in crowd:
                one.close()

    def test_a_supervisor_hears_of_every_state(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.bind(f"{folder}/notify")
            supervisor.settimeout(30)
            environment = {**os.environ, "NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "200000"}
            with Daemon([f"{MODELS}/block.yaml"], environment=environment) as daemon:
                def wait_for(word):
                    heard = []
                    while not heard or word not in heard[-1]:
                        heard.append(supervisor.recv(1000).decode())
                    return heard

                self.assertEqual(wait_for("READY=1")[-1], "READY=1\nSTATUS=1 models\n")
                for _ in range(3):
                    began = time.monotonic()
                    wait_for("WATCHDOG=1")
                    self.assertLess(time.monotonic() - began, scaled(10))
                daemon.signal(signal.SIGHUP)
                self.assertRegex(wait_for("RELOADING=1")[-1], r"^RELOADING=1\nMONOTONIC_USEC=\d+\n$")
                wait_for("READY=1")
                daemon.signal()
                wait_for("STOPPING=1")

    def test_a_device_that_hangs_is_told_by_health_and_starves_the_watchdog(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.bind(f"{folder}/notify")
            environment = {**os.environ, "NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "200000"}
            daemon = Daemon([f"{MODELS}/block.yaml"], {"device": {"stuck_after": 500}}, environment=environment).start()
            self.addCleanup(daemon.kill)

            def heard(seconds, enough):
                """What the supervisor hears until `enough`, or for so long."""
                words, end = [], time.monotonic() + seconds
                while not enough(words) and (left := end - time.monotonic()) > 0:
                    supervisor.settimeout(left)
                    try:
                        words.append(supervisor.recv(1000))
                    except TimeoutError:
                        break
                return words

            def alive(words):
                return b"WATCHDOG=1\n" in words

            executor = freeze.thread_named(daemon.process.pid, "executor")
            frozen = freeze.Frozen(executor)
            self.addCleanup(frozen.__exit__)
            with Client(daemon) as client:
                watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
                self.assertEqual(next(watch), SERVING)
                client.infer(block_request(), timeout=30)
                try:
                    frozen.__enter__()
                except PermissionError as error:
                    daemon.stop()
                    self.skipTest(str(error))
                time.sleep(0.8)  # nothing to do is no hanging
                heard(0.01, lambda _: False)
                self.assertTrue(alive(heard(10, alive)))
                self.assertEqual(client.health(b""), SERVING)
                began = time.monotonic()
                call = client.infer.future(block_request(), timeout=120)
                self.assertEqual(next(watch), NOT_SERVING)
                self.assertGreaterEqual(time.monotonic() - began, 0.4)
                heard(0.01, lambda _: False)
                self.assertEqual(heard(0.6, alive), [])
                self.assertEqual(daemon.http("/v2/health/ready")[0], 503)
                self.assertFalse(call.done())
                frozen.__exit__()
                self.assertTrue(call.result())
                self.assertEqual(next(watch), SERVING)
                self.assertTrue(alive(heard(10, alive)))
                daemon.wait_line("executor_stuck")
                with freeze.Frozen(executor) as frozen:  # and it cannot hold the end up either
                    call = client.infer.future(block_request(), timeout=120)
                    self.assertEqual(next(watch), NOT_SERVING)
                    daemon.signal()
                    self.assertTrue(heard(30, lambda words: b"STOPPING=1\n" in words))
                    daemon.signal()
                    self.assertEqual(call.code(), Code.UNAVAILABLE)
                    self.assertTrue(frozen.wait_end(30), daemon.log())
                self.assertEqual(daemon.wait(30), 1, daemon.log())

    def test_an_aborted_scrape_is_no_sigpipe(self):
        daemon = self.start()
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", daemon.admin_port)) as scrape:
                scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
                scrape.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.assertEqual(daemon.http("/v2/health/live")[0], 200)
        daemon.stop()
