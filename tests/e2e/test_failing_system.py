"""The real daemon, libraries included, while allocations and system calls of it fail on demand (tests/fault/preload.c): what is
hit may fail with a status or a closed connection, the next is right, and nothing stays behind.

For allocations, some of each operation's in turn; FUSEWIRE_FAULTS_ALL=1: every single one (`./dev bench faults`)."""
import mmap
import os
import random
import struct
import tempfile
import threading
import time
import unittest

import grpc
from harness import device, h2_frames as h2
from harness import protobuf_bytes as pb
from harness.authority import Authority
from harness.daemon import Daemon, all_closed, daemon_path
from harness.run import ROOT

ECHO = os.path.join(ROOT, "tests", "e2e", "models", "echo.yaml")
SERVICE = "/inference.GRPCInferenceService/"
INFER, STREAM, LOAD = SERVICE + "ModelInfer", SERVICE + "ModelStreamInfer", SERVICE + "RepositoryModelLoad"
WATCH, REFLECTION = "/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
LIBRARY = os.path.join(os.path.dirname(os.path.dirname(daemon_path())), "tests", "fault", "libfault_preload.so")
ALL = bool(os.environ.get("FUSEWIRE_FAULTS_ALL"))
POINTS = 25  # of each operation
Code = grpc.StatusCode
CALLS = ("write_short", "write_again", "write_no_buffers", "read_short", "read_again", "read_interrupted", "accept_no_files",
         "accept_aborted", "accept_no_memory", "map_no_memory")  # enum fault_call


def echo_request(rows=1):
    data = os.urandom(1024 * rows)
    return pb.infer_request("echo", [pb.tensor("x", "FP32", [1, rows, 256])], [data]), data


class Wishes:
    """struct fault_wishes, shared with the daemon."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.write(bytes(16 + 8 * len(CALLS)))
        self.file = open(path, "r+b")
        self.map = mmap.mmap(self.file.fileno(), 0)

    def allocations(self, left):
        self.map[0:8] = struct.pack("<q", left)

    def left(self):
        return struct.unpack("<q", self.map[0:8])[0]

    def chances(self, **chances):
        for i, name in enumerate(CALLS):
            self.map[16 + 4 * i:20 + 4 * i] = struct.pack("<I", chances.get(name, 0))

    def failed(self):
        counts = struct.unpack(f"<{len(CALLS)}I", self.map[16 + 4 * len(CALLS):16 + 8 * len(CALLS)])
        return dict(zip(CALLS, counts))


@unittest.skipUnless(os.path.exists(LIBRARY), "no libfault_preload.so here (a sanitizer has an allocator of its own)")
@unittest.skipIf(device.on_gpu(), "it is about the host")
class FailingSystemTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        authority = Authority(self.folder)
        self.pairs = [authority.sign("server", 1001), authority.sign("renewed", 1002)]
        self.install(0)
        self.roots = os.path.join(self.folder, "ca.pem")
        self.wishes = Wishes(os.path.join(self.folder, "wishes"))
        self.unix = os.path.join(self.folder, "fw.sock")
        environment = {**os.environ, "LD_PRELOAD": LIBRARY, "FUSEWIRE_FAULTS": os.path.join(self.folder, "wishes")}
        self.daemon = Daemon([ECHO], {
            "server": {"unix": self.unix, "model_control": True},
            "tls": {"certificate": f"{self.folder}/current.pem", "key": f"{self.folder}/current.key"}},
            environment=environment).start()
        self.addCleanup(self.daemon.kill)

    def install(self, which):
        for end, source in zip(("pem", "key"), self.pairs[which]):
            with open(source, "rb") as read, open(f"{self.folder}/new", "wb") as write:
                write.write(read.read())
            os.rename(f"{self.folder}/new", f"{self.folder}/current.{end}")

    def channel(self, tls=True):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        if not tls:
            return grpc.insecure_channel(f"unix:{self.unix}", options=options)
        with open(self.roots, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        return grpc.secure_channel(f"localhost:{self.daemon.grpc_port}", credentials, options=options)

    def assert_clean(self):
        """The law holds, and every connection is gone; then the daemon ends well."""
        self.daemon.settled(lambda metrics: all_closed(metrics) and metrics["fusewire_message_bytes"] == 0)
        self.daemon.stop()

    # ---- system calls ----------------------------------------------------------------------------
    def test_short_and_refused_reads_and_writes_change_no_answer(self):
        self.wishes.chances(write_short=300, write_again=200, read_short=200, read_again=100, read_interrupted=100)
        problems = []

        def work(tls, seed):
            rng = random.Random(seed)
            with self.channel(tls) as channel:
                for _ in range(40):
                    request, data = echo_request(rng.choice([1, 2, 16, 17, 100, 500]))
                    try:
                        if data not in channel.unary_unary(INFER)(request, timeout=60):
                            problems.append("a wrong answer")
                    except grpc.RpcError as error:
                        problems.append(f"{error.code()} {error.details()}")

        threads = [threading.Thread(target=work, args=(i % 2 == 0, i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.wishes.chances()
        self.assertEqual(problems, [])
        failed = self.wishes.failed()
        print("failed on purpose:", failed)
        for name in ("write_short", "write_again", "read_short", "read_again", "read_interrupted"):
            self.assertGreater(failed[name], 5)
        self.assert_clean()

    def test_writes_without_buffers_cost_their_connection_only(self):
        kept = h2.Connection(self.unix)
        self.addCleanup(kept.close)
        self.assertEqual(kept.call(SERVICE + "ServerLive", b"").grpc_status, 0)
        self.wishes.chances(write_no_buffers=200)
        codes = []
        for i in range(60):
            with self.channel(i % 2 == 0) as channel:
                try:
                    channel.unary_unary(INFER)(echo_request(20)[0], timeout=60)
                    codes.append(Code.OK)
                except grpc.RpcError as error:
                    codes.append(error.code())
        self.wishes.chances()
        self.assertLessEqual(set(codes), {Code.OK, Code.UNAVAILABLE})
        self.assertIn(Code.OK, codes)
        self.assertGreater(self.wishes.failed()["write_no_buffers"], 3)
        self.assertEqual(kept.call(SERVICE + "ServerLive", b"").grpc_status, 0)
        kept.close()
        self.assert_clean()

    def test_connections_that_cannot_be_accepted_cost_others_nothing(self):
        kept = h2.Connection(self.unix)
        self.addCleanup(kept.close)
        self.assertEqual(kept.call(SERVICE + "ServerLive", b"").grpc_status, 0)
        self.wishes.chances(accept_no_files=400, accept_aborted=200, accept_no_memory=200)
        served = 0
        for _ in range(40):
            try:
                with h2.Connection(self.unix, timeout=30) as connection:
                    served += connection.call(SERVICE + "ServerLive", b"").grpc_status == 0
            except OSError:
                pass
            self.assertEqual(kept.call(SERVICE + "ServerLive", b"").grpc_status, 0)
        self.wishes.chances()
        failed = self.wishes.failed()
        print(f"{served} of 40 served;", {name: count for name, count in failed.items() if count})
        for name in ("accept_no_files", "accept_aborted", "accept_no_memory"):
            self.assertGreater(failed[name], 0)
        self.assertGreater(served, 5)
        with self.channel() as channel:
            self.assertTrue(channel.unary_unary(INFER)(echo_request()[0], timeout=60))
        kept.close()
        self.assert_clean()

    # ---- allocations -----------------------------------------------------------------------------
    def every(self, name, operation, points=None):
        """`operation` with one allocation failing, at points spread over all that it makes; then once more, and right."""
        for _ in range(3):
            operation(True)  # caches fill
        self.wishes.allocations(1 << 40)
        operation(True)
        count = (1 << 40) - self.wishes.left()
        step = 1 if ALL and not points else max(1, count // (points or POINTS))
        refused = 0
        for n in range(1, count + 1, step):
            self.wishes.allocations(n)
            good = operation(False)
            self.wishes.allocations(0)
            refused += not good
            self.assertTrue(self.daemon.alive(), f"{name}: dead after allocation {n} of {count} failed:\n{self.daemon.log()}")
            self.assertTrue(operation(True), f"{name}: wrong after allocation {n} of {count} had failed:\n{self.daemon.log()}")
        print(f"{name}: {count} allocations, {len(range(1, count + 1, step))} of them failed in turn, {refused} operations "
              "with them")

    def attempt(self, tls, call, must):
        """One call on a connection of its own; `must`: it has to succeed."""
        try:
            with self.channel(tls) as channel:
                return call(channel)
        except grpc.RpcError as error:
            if must:
                self.fail(f"{error.code()} {error.details()}\n{self.daemon.log()}")
            return False

    def infer(self, channel):
        request, data = echo_request(3)
        return data in channel.unary_unary(INFER)(request, timeout=20)

    def test_an_inference_on_a_new_connection_in_clear_text(self):
        self.every("infer", lambda must: self.attempt(False, self.infer, must))
        self.assert_clean()

    def test_an_inference_behind_a_tls_handshake(self):
        self.every("TLS", lambda must: self.attempt(True, self.infer, must))
        self.assert_clean()

    def test_streams_watches_and_reflection(self):
        def stream(channel):
            pairs = [echo_request(1 + i) for i in range(5)]
            answers = list(channel.stream_stream(STREAM)(iter([request for request, _ in pairs]), timeout=20))
            return len(answers) == 5 and all(data in answer for answer, (_, data) in zip(answers, pairs))

        def watch(channel):
            call = channel.unary_stream(WATCH)(b"", timeout=20)
            first = next(call)
            call.cancel()
            return first == b"\x08\x01"

        def reflection(channel):
            return len(list(channel.stream_stream(REFLECTION)(iter([pb.chunk(7, "")] * 3), timeout=20))) == 3

        for name, call in (("stream", stream), ("watch", watch), ("reflection", reflection)):
            with self.subTest(name):
                self.every(name, lambda must: self.attempt(False, call, must))
        self.assert_clean()

    def test_a_model_that_is_loaded_again(self):
        kept = self.channel(False)
        self.addCleanup(kept.close)

        def load(must):
            try:
                kept.unary_unary(LOAD)(pb.chunk(2, "echo"), timeout=60)
                good = True
            except grpc.RpcError as error:
                good = False
                if must:
                    self.fail(f"{error.code()} {error.details()}\n{self.daemon.log()}")
            return self.infer(kept) and good if must else good  # old or new, it serves

        self.every("reload", load)
        kept.close()
        self.assert_clean()

    @unittest.skipUnless(ALL, "seconds for each; fault/tls does it without waiting")
    def test_a_certificate_that_is_read_again(self):
        which = [0]

        def renew(must):
            which[0] ^= 1
            self.install(which[0])
            time.sleep(1.05)  # it looks once a second
            return self.attempt(True, self.infer, must)

        self.every("certificate", renew, 8)
        self.assert_clean()

    def test_a_scrape(self):
        def scrape(must):
            try:
                return "fusewire_build_info" in self.daemon.http("/metrics")[1]
            except (OSError, ValueError):
                if must:
                    raise
                return False

        self.every("scrape", scrape)
        self.assert_clean()


if __name__ == "__main__":
    unittest.main()
