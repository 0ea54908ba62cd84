"""HTTP/2 by hand: any frame, right or wrong, and a record of every frame that comes back.

Only HPACK is a library's (hpack); the framing is ours, since an HTTP/2 library refuses to send most bad input.
"""
import socket
import ssl
import struct
import time

import hpack

from .clock import scaled

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED, FRAME_SIZE_ERROR, \
    REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(12)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b"", length=None):
    length = len(payload) if length is None else length
    return struct.pack(">I", length)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def grpc_message(data, flag=0, length=None):
    return bytes([flag]) + struct.pack(">I", len(data) if length is None else length) + data


def grpc_headers(path, extra=(), without=(), method="POST"):
    headers = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost"),
               ("te", "trailers"), ("content-type", "application/grpc")]
    names = {name for name, _ in extra}
    return [h for h in headers if h[0] not in without and h[0] not in names] + list(extra)


class Stream:
    def __init__(self):
        self.blocks = []  # header blocks in order: response headers, trailers
        self.data = b""
        self.ended = False
        self.reset = None  # RST_STREAM code
        self.last_kind = None  # of the frame that carried END_STREAM

    @property
    def headers(self):
        return self.blocks[0] if self.blocks else {}

    @property
    def trailers(self):
        return self.blocks[-1] if self.blocks else {}

    @property
    def grpc_status(self):
        text = self.trailers.get("grpc-status")
        return None if text is None else int(text)

    @property
    def grpc_message(self):
        from urllib.parse import unquote

        return unquote(self.trailers.get("grpc-message", ""))

    @property
    def done(self):
        return self.ended or self.reset is not None


class Connection:
    def __init__(self, port, settings=(), preface=True, window_updates=True, timeout=10.0, tls=None):
        """`port`: a number, or the path of a Unix socket. `tls`: the certificate file to trust. Here and below, time-outs are
        those of a release build."""
        self.timeout = timeout
        if isinstance(port, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(scaled(timeout))
            self.socket.connect(port)
        else:
            self.socket = socket.create_connection(("127.0.0.1", port), scaled(timeout))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.create_default_context(cafile=tls)
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.decoder.max_header_list_size = 1 << 20
        self.streams, self.goaways, self.pings, self.frames, self.settings = {}, [], [], [], {}
        self.ended = False  # by the peer: all that it sent has been read
        self.unsendable = False
        self.window_updates = window_updates
        self.next_stream = 1
        self._pending, self._block = b"", b""
        if preface:
            body = b"".join(struct.pack(">HI", key, value) for key, value in settings)
            self.send(PREFACE + frame(SETTINGS, 0, 0, body))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.settimeout(scaled(self.timeout))  # not what was left of the last wait
            self.socket.sendall(data)
        except OSError:  # what came before may still be read
            self.unsendable = True

    @property
    def closed(self):
        return self.ended or self.unsendable

    def stream(self, number):
        return self.streams.setdefault(number, Stream())

    def new_stream(self):
        number, self.next_stream = self.next_stream, self.next_stream + 2
        return number

    def send_headers(self, headers, stream=None, end_stream=False):
        stream = self.new_stream() if stream is None else stream
        self.send(frame(HEADERS, END_HEADERS | (END_STREAM if end_stream else 0), stream, self.encoder.encode(headers)))
        return stream

    def send_data(self, stream, data, end_stream=True, chunk=16384):
        pieces = [data[i:i + chunk] for i in range(0, len(data), chunk)] or [b""]
        last = len(pieces) - 1
        self.send(b"".join(frame(DATA, END_STREAM if end_stream and i == last else 0, stream, piece)
                           for i, piece in enumerate(pieces)))

    def start_call(self, path, message, extra=(), without=(), flag=0):
        stream = self.send_headers(grpc_headers(path, extra, without))
        self.send_data(stream, grpc_message(message, flag))
        return stream

    def call(self, path, message, extra=(), without=(), flag=0):
        stream = self.start_call(path, message, extra, without, flag)
        self.wait(stream)
        return self.stream(stream)

    # ---- receiving -------------------------------------------------------------------------------
    def flood(self, frames, call, allowed_s):
        """Many frames and a call behind them. True: it was ended for them. False: they were answered, but read so slowly, in more
        than allowed_s, that they may have been within the rate of an honest client."""
        began = time.monotonic()
        self.send(frames)
        last = self.start_call(call, b"")
        self.read_until(lambda: self.ended or self.stream(last).done, 60)
        taken = time.monotonic() - began
        assert self.ended or taken > allowed_s, f"not ended, though all was read within {taken:.1f} s"
        return self.ended

    def wait(self, stream, timeout=None):
        return self.read_until(lambda: self.stream(stream).done, timeout)

    def wait_closed(self, timeout=None):
        return self.read_until(lambda: False, timeout) or self.ended

    def read_until(self, condition, timeout=None):
        """Handle frames until condition() or the connection's end; False when time ran out."""
        return self._read(condition, scaled(self.timeout if timeout is None else timeout))

    def read_for(self, seconds):
        """Handle frames for so long, or until the connection's end."""
        self._read(lambda: False, seconds)

    def _read(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if self.ended or left <= 0:
                return condition()
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                return condition()
            except OSError:
                data = b""
            if not data:
                self.ended = True
                return condition()
            self._pending += data
            self._handle_frames()
        return True

    def _handle_frames(self):
        while len(self._pending) >= 9:
            length = int.from_bytes(self._pending[:3], "big")
            if len(self._pending) < 9 + length:
                return
            kind, flags = self._pending[3], self._pending[4]
            stream = int.from_bytes(self._pending[5:9], "big") & 0x7FFFFFFF
            payload, self._pending = self._pending[9:9 + length], self._pending[9 + length:]
            self.frames.append((kind, flags, stream, payload))
            self._handle(kind, flags, stream, payload)

    def _handle(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for i in range(0, len(payload), 6):
                key, value = struct.unpack(">HI", payload[i:i + 6])
                self.settings[key] = value
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING:
            self.pings.append((bool(flags & ACK), payload))
            if not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            self.goaways.append((last & 0x7FFFFFFF, code, payload[8:]))
        elif kind == RST_STREAM:
            self.stream(stream).reset = struct.unpack(">I", payload)[0]
        elif kind == DATA:
            self.stream(stream).data += payload
            if self.window_updates and payload:
                update = struct.pack(">I", len(payload))
                self.send(frame(WINDOW_UPDATE, 0, 0, update) + frame(WINDOW_UPDATE, 0, stream, update))
        elif kind in (HEADERS, CONTINUATION):
            self._block += payload
            if flags & END_HEADERS:
                self.stream(stream).blocks.append(dict(self.decoder.decode(self._block)))
                self._block = b""
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self.stream(stream).ended = True
            self.stream(stream).last_kind = kind
