"""grpc.health.v1 by a stock client: Check, List and Watch, for the server, its services and its models."""
import os
import threading
import time
import unittest

import grpc
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness.clock import scaled, wait_for
from harness.daemon import Daemon
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
SERVICE = "/grpc.health.v1.Health/"
UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)
Code = grpc.StatusCode


def status_of(message):
    return dict(pb.fields(message)).get(1, 0)


class Watch:
    """A Watch call whose messages are collected as they come."""

    def __init__(self, channel, name, **options):
        self.call = channel.unary_stream(SERVICE + "Watch")(pb.chunk(1, name), **options)
        self.seen, self.code = [], None
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        try:
            for message in self.call:
                self.seen.append(status_of(message))
            self.code = Code.OK
        except grpc.RpcError as error:
            self.code = error.code()

    def wait_for(self, seen):
        wait_for(lambda: self.seen == seen, what=lambda: f"{self.seen}, expected {seen}")

    def end(self):
        self.call.cancel()
        self.thread.join(scaled(30))
        assert not self.thread.is_alive()


class HealthTest(unittest.TestCase):
    def start(self, drain_delay=300):
        self.daemon = Daemon([f"{MODELS}/block.yaml", f"{MODELS}/echo.yaml"], {"server": {"drain_delay": drain_delay}}).start()
        self.addCleanup(self.daemon.kill)
        self.channel = grpc.insecure_channel(self.daemon.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(self.channel.close)

    def check(self, name):
        return status_of(self.channel.unary_unary(SERVICE + "Check")(pb.chunk(1, name), timeout=30))

    def test_check_knows_the_server_its_services_and_its_models(self):
        self.start()
        for name in ("", "inference.GRPCInferenceService", "grpc.health.v1.Health", "block", "block/1", "echo"):
            self.assertEqual(self.check(name), SERVING, name)
        for name in ("nobody", "block/2", "block/", "inference", "bloc", "x" * 1000):
            with self.assertRaises(grpc.RpcError) as raised:
                self.check(name)
            self.assertEqual(raised.exception.code(), Code.NOT_FOUND, name)

    def test_list_has_every_name_that_check_knows(self):
        self.start()
        reply = self.channel.unary_unary(SERVICE + "List")(b"", timeout=30)
        listed = {}
        for _, entry in pb.fields(reply):
            item = dict(pb.fields(entry))
            listed[item.get(1, b"").decode()] = status_of(item[2])
        self.assertEqual(set(listed.values()), {SERVING})
        for name in ("", "inference.GRPCInferenceService", "grpc.health.v1.Health", "block", "block/1", "echo", "echo/1"):
            self.assertIn(name, listed)
        for name in listed:
            self.assertEqual(self.check(name), SERVING, name)

    def test_watch_tells_changes_and_the_drain_ends_it(self):
        self.start()
        watches = [Watch(self.channel, name) for name in ("", "block", "inference.GRPCInferenceService")]
        stranger = Watch(self.channel, "nobody")
        for watch in watches:
            watch.wait_for([SERVING])
        stranger.wait_for([SERVICE_UNKNOWN])
        self.assertIsNone(stranger.code)  # stays open
        began = time.monotonic()
        self.daemon.signal()
        for watch in watches:
            watch.wait_for([SERVING, NOT_SERVING])
            watch.thread.join(scaled(30))
            self.assertEqual(watch.code, Code.UNAVAILABLE)
        stranger.thread.join(scaled(30))
        self.assertEqual((stranger.seen, stranger.code), ([SERVICE_UNKNOWN], Code.UNAVAILABLE))
        self.assertEqual(self.daemon.wait(), 0)
        self.assertLess(time.monotonic() - began, 20)  # open watches do not hold the drain up to its time-out

    def test_watches_come_and_go(self):
        self.start()
        for _ in range(20):
            watches = [Watch(self.channel, "block") for _ in range(5)]
            for watch in watches:
                watch.wait_for([SERVING])
                watch.end()
                self.assertEqual(watch.code, Code.CANCELLED)
        late = Watch(self.channel, "", timeout=scaled(0.5))
        late.thread.join(scaled(30))
        self.assertEqual((late.seen, late.code), ([SERVING], Code.DEADLINE_EXCEEDED))
        self.daemon.stop()

    def test_a_watcher_that_does_not_read_holds_nothing_up(self):
        self.start(drain_delay=60000)
        with h2.Connection(self.daemon.grpc_port, settings=[(4, 0)], window_updates=False) as deaf:
            for _ in range(50):
                deaf.start_call(SERVICE + "Watch", b"")
            self.assertTrue(deaf.read_until(lambda: len(deaf.streams) == 50))
            self.assertEqual(self.check(""), SERVING)
            self.daemon.signal()
            wait_for(lambda: self.check("") == NOT_SERVING)
