"""Traces by OTLP over HTTP: what spans say, and that no collector, however bad, costs a call anything."""
import os
import re
import threading
import time
import unittest

import grpc
from harness import protobuf_bytes as pb
from harness.clock import scaled, wait_for
from harness.collector import Collector, attributes
from harness.daemon import Daemon, sanitized
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
HEALTH = "/grpc.health.v1.Health/Check"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER, INTERNAL, ERROR = 2, 1, 2
PROMPT_S = min(scaled(10), 20)  # where a wait would be of server.drain_timeout, 30 s


def block_request(model="block", rows=2, request_id=""):
    return pb.infer_request(model, [pb.tensor("x", "FP32", [rows, 48])], [bytes(192 * rows)], request_id=request_id)


def calls(spans):
    return [span for span in spans if span.kind == SERVER]


class TraceTest(unittest.TestCase):
    def start(self, endpoint, **settings):
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        trace = {"endpoint": endpoint, "delay": 20, "service": "test service", **settings}
        daemon = Daemon([f"{MODELS}/block.yaml"], {"trace": trace}, environment=environment).start()
        self.addCleanup(daemon.kill)
        self.channel = grpc.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(self.channel.close)
        self.infer = self.channel.unary_unary(INFER)
        return daemon

    def counts(self, daemon, total=None):
        """(exported, failed, dropped); with a total, as soon as they add up to it."""
        found = []

        def all_told():
            metrics = daemon.metrics()
            found[:] = [int(metrics[f"fusewire_trace_{name}_total"]) for name in ("exported", "failed", "dropped")]
            return total is None or sum(found) >= total

        wait_for(all_told, 60, lambda: f"{found}, and {total} calls were made")
        return tuple(found)

    # ---- what spans say --------------------------------------------------------------------------
    def test_a_call_is_a_span_with_its_stages_within(self):
        with Collector() as collector:
            daemon = self.start(collector.url)
            before = time.time_ns()
            self.infer(block_request(request_id="caf\u00e9 1"), timeout=30)
            spans = collector.wait(lambda spans: len(calls(spans)) == 1)
            (span,) = calls(spans)
            self.assertEqual(span.name, "inference.GRPCInferenceService/ModelInfer")
            self.assertEqual((len(span.trace_id), len(span.span_id), span.parent_span_id, span.flags), (16, 8, b"", 0x101))
            told = attributes(span)
            expected = {"rpc.system": "grpc", "rpc.service": "inference.GRPCInferenceService", "rpc.method": "ModelInfer",
                        "rpc.grpc.status_code": 0, "server.address": "127.0.0.1", "server.port": daemon.grpc_port,
                        "fusewire.model.name": "block", "fusewire.model.version": "1", "fusewire.request.id": "caf\u00e9 1",
                        "fusewire.batch.requests": 1, "fusewire.batch.tokens": 2}
            self.assertEqual({key: told[key] for key in expected}, expected)
            self.assertIn(told["fusewire.fusion"], ("on", "off", "auto"))
            for key in ("kernels", "hbm.read_bytes", "hbm.write_bytes", "hbm.unfused_bytes"):
                self.assertGreater(told[f"fusewire.{key}"], 0, key)
            self.assertEqual(span.status.code, 0)
            stages = {child.name: child for child in spans if child.parent_span_id == span.span_id}
            self.assertLessEqual({"queue", "compute"}, set(stages))
            self.assertLessEqual(set(stages), {"queue", "copy_in", "compute", "copy_out"})
            self.assertEqual(len({one.span_id for one in spans}), len(spans))
            for child in stages.values():
                self.assertEqual((child.kind, child.trace_id), (INTERNAL, span.trace_id))
                self.assertLessEqual(span.start_time_unix_nano, child.start_time_unix_nano)
                self.assertLess(child.start_time_unix_nano, child.end_time_unix_nano)
                self.assertLessEqual(child.end_time_unix_nano, span.end_time_unix_nano)
            self.assertLess(before - 10**9, span.start_time_unix_nano)
            self.assertLess(span.end_time_unix_nano, time.time_ns() + 10**9)
            path, headers = collector.requests[0]
            self.assertEqual((path, headers["Content-Type"]), ("/v1/traces", "application/x-protobuf"))
            (resource,) = collector.exports()[0].resource_spans
            self.assertEqual(attributes(resource.resource)["service.name"], "test service")
            self.assertEqual(resource.scope_spans[0].scope.name, "fusewire")

            # Parents decide: sampled, not sampled, and what is no traceparent.
            for flags in ("01", "00"):
                self.infer(block_request(), metadata=[("traceparent", f"00-{TRACE}-{PARENT}-{flags}")], timeout=30)
            self.infer(block_request(), metadata=[("traceparent", f"00-{TRACE.upper()}-{PARENT}-00")], timeout=30)
            child, root = calls(collector.wait(lambda spans: len(calls(spans)) == 3))[1:]
            self.assertEqual((child.trace_id.hex(), child.parent_span_id.hex(), child.flags), (TRACE, PARENT, 0x301))
            self.assertEqual(root.parent_span_id, b"")
            self.assertNotEqual(root.trace_id.hex(), TRACE)

            # Its state goes with it, into the parts of the call, too; what is none does not.
            parent, long = ("traceparent", f"00-{TRACE}-{PARENT}-01"), "x" * 250
            states = [([parent, ("tracestate", "a=1,b@c=2 3")], "a=1,b@c=2 3"),
                      ([("tracestate", "a=1"), parent, ("tracestate", "b=2")], "a=1,b=2"),
                      ([parent, ("tracestate", f"a={long},b={long}")], f"a={long},b={long}"),
                      ([parent, ("tracestate", f"a={long},b={long}"), ("tracestate", "c=123456789")], ""),
                      ([parent, ("tracestate", "A=1")], ""), ([parent, ("tracestate", "")], ""), ([("tracestate", "a=1")], ""),
                      ([parent], "")]
            for metadata, _ in states:
                self.infer(block_request(), metadata=metadata, timeout=30)
            spans = collector.wait(lambda spans: len(calls(spans)) == 3 + len(states))
            for call, (metadata, state) in zip(calls(spans)[3:], states):
                parts = [span for span in spans if span.parent_span_id == call.span_id]
                self.assertGreater(len(parts), 1)
                self.assertEqual({span.trace_state for span in (call, *parts)}, {state}, metadata)

            # Calls that fail, and how far that is the server's fault.
            wrong = pb.infer_request("block", [pb.tensor("x", "FP32", [1, 47])], [bytes(188)])
            failing = [(INFER, block_request("nobody"), "NOT_FOUND", 5, 0), ("/no.Such/Method", b"", "UNIMPLEMENTED", 12, ERROR),
                       (INFER, b"\xff\xff", "INTERNAL", 13, ERROR), (INFER, wrong, "INVALID_ARGUMENT", 3, 0)]
            for path, message, name, _, _ in failing:
                with self.assertRaises(grpc.RpcError) as raised:
                    self.channel.unary_unary(path)(message, timeout=30)
                self.assertEqual(raised.exception.code().name, name)
            spans = calls(collector.wait(lambda spans: len(calls(spans)) == 15))[11:]
            for span, (path, _, name, code, status) in zip(spans, failing):
                self.assertEqual((attributes(span)["rpc.grpc.status_code"], span.status.code), (code, status), name)
                self.assertEqual(span.name, "_OTHER" if "Such" in path else path[1:])
                self.assertEqual(bool(span.status.message), status == ERROR)
            self.assertIn("/no.Such/Method", spans[1].status.message)
            self.assertEqual(attributes(spans[3])["fusewire.model.name"], "block")

            # A call that the client gave up.
            call = self.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            next(call)
            call.cancel()
            span = calls(collector.wait(lambda spans: len(calls(spans)) == 16))[15]
            self.assertEqual((span.name, attributes(span)["rpc.grpc.status_code"]), ("grpc.health.v1.Health/Watch", 1))
            self.assertEqual(self.counts(daemon, 16), (16, 0, 0))
            daemon.stop()

    def test_requests_of_a_stream_are_spans_within_the_call(self):
        with Collector() as collector:
            daemon = self.start(collector.url)
            messages = [block_request(), block_request("nobody"), block_request(request_id="last")]
            replies = list(self.channel.stream_stream(STREAM)(iter(messages), timeout=30))
            self.assertEqual(len(replies), 3)
            spans = collector.wait(lambda spans: calls(spans))
            (call,) = calls(spans)
            requests = [span for span in spans if span.parent_span_id == call.span_id]
            self.assertEqual([(span.name, attributes(span)["rpc.grpc.status_code"]) for span in requests],
                             [("request", 0), ("request", 5), ("request", 0)])
            self.assertEqual(attributes(requests[2])["fusewire.request.id"], "last")
            computes = [span for span in spans if span.name == "compute"]
            self.assertEqual([span.parent_span_id for span in computes], [requests[0].span_id, requests[2].span_id])
            self.assertEqual(self.counts(daemon, 4), (4, 0, 0))
            daemon.stop()

    def test_a_share_of_calls_is_traced(self):
        health, traced = [("traceparent", f"00-{TRACE}-{PARENT}-01")], 300
        for share, least, most in ((0.0, 0, 0), (0.5, 100, 200)):
            with Collector() as collector:
                daemon = self.start(collector.url, sampling=share)
                call = self.channel.unary_unary(HEALTH)
                for _ in range(traced):
                    call(b"", timeout=30)
                call(b"", metadata=health, timeout=30)
                spans = collector.wait(lambda spans: any(span.trace_id.hex() == TRACE for span in spans))
                self.assertGreaterEqual(len(spans) - 1, least)
                self.assertLessEqual(len(spans) - 1, most)
                daemon.stop()

    # ---- collectors as they may be ---------------------------------------------------------------
    def test_what_is_left_is_sent_before_the_end(self):
        with Collector() as collector:
            daemon = self.start(collector.url, delay=600000)
            for _ in range(5):
                self.infer(block_request(), timeout=30)
            self.assertEqual(collector.bodies, [])
            daemon.stop()
            self.assertEqual(len(calls(collector.spans())), 5)

    def test_a_collector_that_has_no_time_is_asked_again(self):
        def answer(handler, n):
            handler.reply((503, 429, 200)[min(n, 2)], **({"Retry_After": "1"} if n == 1 else {}))

        with Collector(answer) as collector:
            daemon = self.start(collector.url)
            began = time.monotonic()
            self.infer(block_request(), timeout=30)
            self.assertEqual(self.counts(daemon, 1), (1, 0, 0))
            self.assertGreater(time.monotonic() - began, 1.2)
            self.assertEqual(len(collector.bodies), 3)
            self.assertEqual(len(set(collector.bodies)), 1)
            daemon.stop()

    def test_a_collector_that_refuses_is_not_asked_again(self):
        partial = pb.chunk(1, pb.number(1, 2) + pb.chunk(2, "too \U0001f600 many"))

        def answer(handler, n):
            handler.reply((400, 200)[min(n, 1)], partial if n else b"no")

        with Collector(answer) as collector:
            daemon = self.start(collector.url)
            self.infer(block_request(), timeout=30)
            self.assertEqual(self.counts(daemon, 1), (0, 1, 0))
            self.infer(block_request(), timeout=30)
            self.assertEqual(self.counts(daemon, 2), (0, 2, 0))
            self.assertEqual(len(collector.bodies), 2)
            daemon.wait_line("HTTP status 400")
            daemon.wait_line("refused spans: too \U0001f600 many")
            daemon.stop()

    def test_rubbish_is_no_harm(self):
        def endless(handler):
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for _ in range(10000):
                handler.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")

        def headers(handler):
            handler.send_response(200)
            for i in range(100):
                handler.send_header(f"X-{i}", "x" * 8000)
            handler.end_headers()

        answers = [lambda handler: handler.reply(200, b"\xff\xff not protobuf"), lambda handler: handler.reply(200, bytes(10000)),
                   endless, headers, lambda handler: handler.reply(301, Location="http://127.0.0.1:1/")]
        with Collector(lambda handler, n: answers[n](handler)) as collector:
            daemon = self.start(collector.url)
            before = daemon.proc("VmRSS")
            for n in range(len(answers)):
                self.infer(block_request(), timeout=30)
                self.counts(daemon, n + 1)
            self.assertEqual(self.counts(daemon), (4, 1, 0))
            self.assertEqual(len(collector.bodies), len(answers))
            if not sanitized():
                self.assertLess(daemon.proc("VmRSS") - before, 8 << 10)
            daemon.stop()

    def test_a_collector_that_is_not_there_or_speaks_nonsense_costs_no_call(self):
        def nonsense(handler, _):
            handler.wfile.write(b"\0\1\2 this is no HTTP\r\n\r\n")
            handler.close_connection = True

        with Collector(nonsense) as collector:
            for endpoint in ("http://127.0.0.1:1/v1/traces", "https" + collector.url[4:], collector.url):
                daemon = self.start(endpoint, queue=4, timeout=600000)
                for _ in range(50):
                    self.infer(block_request(), timeout=30)
                exported, failed, dropped = self.counts(daemon)
                self.assertEqual(exported, 0)
                self.assertIn(failed, (0, 1, 2, 3, 4))  # the first ones, which are being tried again and again
                self.assertGreater(dropped, 0)
                daemon.signal()
                began = time.monotonic()
                self.assertEqual(daemon.wait(), 0, daemon.log())
                self.assertLess(time.monotonic() - began, PROMPT_S)
                self.assertRegex(daemon.log(), "traces are lost: " + re.escape(endpoint))

    def test_a_slow_collector_costs_no_call_and_holds_no_exit(self):
        release = threading.Event()
        with Collector(lambda handler, n: (release.wait(60), handler.reply(200))) as collector:
            daemon = self.start(collector.url, queue=16, timeout=600000)
            for _ in range(200):
                self.infer(block_request(), timeout=30)
            self.assertGreaterEqual(self.counts(daemon)[2], 100)
            collector.wait(lambda spans: spans)
            daemon.signal()
            time.sleep(0.3)  # it waits for the collector, with no call left
            self.assertTrue(daemon.alive())
            daemon.signal()
            began = time.monotonic()
            self.assertEqual(daemon.wait(), 0, daemon.log())
            self.assertLess(time.monotonic() - began, PROMPT_S)
            daemon = self.start(collector.url, timeout=300)
            self.infer(block_request(), timeout=30)
            collector.wait(lambda spans: len(calls(spans)) >= 2)
            began = time.monotonic()
            daemon.stop()
            self.assertLess(time.monotonic() - began, PROMPT_S)
            release.set()

    def test_settings_that_are_no_collector(self):
        for url, words in (("ftp://a/", "trace.endpoint"), ("http://", "trace.endpoint"), ("http://a b/", "trace.endpoint"),
                           ("localhost:4318", "trace.endpoint")):
            daemon = Daemon([f"{MODELS}/block.yaml"], {"trace": {"endpoint": url}})
            with self.assertRaises(AssertionError) as raised:
                daemon.start()
            self.assertIn(words, str(raised.exception))
            self.assertEqual(daemon.process.returncode, 2)


if __name__ == "__main__":
    unittest.main()
