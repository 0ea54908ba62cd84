"""An OpenTelemetry collector to test against: keeps what is POSTed to it, decoded by the standard's own messages, and can be
as unpleasant as a test wants."""
import http.server
import threading

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .clock import wait_for


def value_of(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(item):
    return {pair.key: value_of(pair.value) for pair in item.attributes}


class Collector:
    """with Collector() as c: ... c.url ... c.wait(lambda spans: ...). `answer(handler, n)` answers the n-th POST (from 0);
    without one it is 200 and an empty ExportTraceServiceResponse."""

    def __init__(self, answer=None):
        self.answer, self.requests, self.bodies = answer, [], []
        self.changed = threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.changed:
                    n = len(collector.bodies)
                    collector.bodies.append(body)
                    collector.requests.append((self.path, dict(self.headers)))
                    collector.changed.notify_all()
                if collector.answer:
                    collector.answer(self, n)
                else:
                    self.reply(200)

            def reply(self, code, body=b"", **headers):
                self.send_response(code)
                fields = {"Content-Type": "application/x-protobuf", "Content-Length": str(len(body)), **headers}
                for name, value in fields.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)

            def handle(self):
                try:
                    super().handle()
                except OSError:  # the daemon hung up, as it should
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def exports(self):
        with self.changed:
            return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    def spans(self):
        return [span for export in self.exports() for resource in export.resource_spans
                for scope in resource.scope_spans for span in scope.spans]

    def wait(self, enough, seconds=30):
        """The spans, as soon as enough(spans)."""
        found = []

        def look():
            found[:] = self.spans()
            return enough(found)

        wait_for(look, seconds, lambda: f"{len(found)} spans, and not those that were waited for")
        return list(found)
