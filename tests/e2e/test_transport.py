"""What calls travel over: TLS and mTLS, certificates that change, Unix sockets, tokens, keepalive, age, loops that accept."""
import os
import socket
import ssl
import tempfile
import threading
import time
import unittest

import grpc
from harness import h2_frames as h2
from harness import protobuf_bytes as pb
from harness.authority import Authority, openssl
from harness.clock import scaled, wait_for
from harness.daemon import Daemon, check
from harness.run import ROOT

ECHO = os.path.join(ROOT, "tests", "e2e", "models", "echo.yaml")
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
HEALTH = "/grpc.health.v1.Health/Check"
Code = grpc.StatusCode


def echo_request(rows=1):
    data = os.urandom(1024 * rows)
    return pb.infer_request("echo", [pb.tensor("x", "FP32", [1, rows, 256])], [data]), data


def read(path):
    with open(path, "rb") as file:
        return file.read()


class TransportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.authority = Authority(cls.folder.name)
        cls.stranger = Authority(cls.folder.name, "stranger")
        cls.server = cls.authority.sign("server", 1001)
        cls.client = cls.authority.sign("client", 2001)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def start(self, settings):
        daemon = Daemon([ECHO], settings).start()
        self.addCleanup(daemon.kill)
        return daemon

    def tls_settings(self, **more):
        return {"tls": {"certificate": self.server[0], "key": self.server[1], **more}}

    def channel(self, daemon, client=None):
        key, chain = (read(client[1]), read(client[0])) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(read(self.authority.path("pem", "ca")), key, chain)
        channel = grpc.secure_channel(f"localhost:{daemon.grpc_port}", credentials, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)])
        self.addCleanup(channel.close)
        return channel

    def assert_echo(self, channel, rows=1, **options):
        request, data = echo_request(rows)
        self.assertIn(data, channel.unary_unary(INFER)(request, timeout=60, **options))

    def assert_refused(self, channel, code=Code.UNAVAILABLE, **options):
        with self.assertRaises(grpc.RpcError) as raised:
            channel.unary_unary(LIVE)(b"", timeout=30, **options)
        self.assertEqual(raised.exception.code(), code, raised.exception.details())

    def handshake(self, daemon, alpn=("h2",), most=None, context=None):
        """An ssl socket, by the standard library."""
        context = context or ssl.create_default_context(cafile=self.authority.path("pem", "ca"))
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if most:
            context.minimum_version = most
            context.maximum_version = most
        raw = socket.create_connection(("127.0.0.1", daemon.grpc_port), timeout=20)
        self.addCleanup(raw.close)
        return context.wrap_socket(raw, server_hostname="localhost")

    # ---- TLS -------------------------------------------------------------------------------------
    def test_calls_of_all_sizes_over_tls(self):
        daemon = self.start(self.tls_settings())
        channel = self.channel(daemon)
        for rows in (1, 3, 16, 17, 300, 5000):
            self.assert_echo(channel, rows)
        futures = [channel.unary_unary(INFER).future(echo_request(64)[0], timeout=60) for _ in range(100)]
        self.assertTrue(all(future.result() for future in futures))
        self.assert_refused(grpc.insecure_channel(daemon.address))
        self.assert_echo(channel)
        daemon.stop()

    def test_versions_and_protocols_of_tls(self):
        daemon = self.start(self.tls_settings())
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with self.handshake(daemon, most=version) as client:
                self.assertEqual(client.selected_alpn_protocol(), "h2")
                client.sendall(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
                self.assertEqual(client.recv(9)[3], h2.SETTINGS)
        for name, options in {"old": {"most": ssl.TLSVersion.TLSv1_1}, "other protocol": {"alpn": ("http/1.1",)}}.items():
            with self.subTest(name), self.assertRaises((ssl.SSLError, OSError)):
                self.handshake(daemon, **options)
        with self.handshake(daemon, alpn=()) as client:  # TLS is made before the server can see that h2 is not offered
            client.sendall(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))
            with self.assertRaises((ssl.SSLError, OSError)):
                if client.recv(1) == b"":
                    raise OSError("closed")
        self.assert_echo(self.channel(daemon))
        daemon.stop()

    def test_clients_must_show_a_certificate_where_one_is_asked_for(self):
        daemon = self.start(self.tls_settings(client_ca=self.authority.path("pem", "ca")))
        self.assert_echo(self.channel(daemon, self.client))
        self.assert_refused(self.channel(daemon))
        self.assert_refused(self.channel(daemon, self.stranger.sign("mallory")))
        self.assert_echo(self.channel(daemon, self.client))
        daemon.stop()

    def test_a_certificate_that_changes_is_taken_without_a_restart(self):
        current = [self.authority.path(end, "current") for end in ("pem", "key")]

        def install(certificate, key):
            for source, target in ((certificate, current[0]), (key, current[1])):
                with open(f"{target}.new", "wb") as file:
                    file.write(read(source))
                os.rename(f"{target}.new", target)

        def serial():
            with self.handshake(daemon) as client:
                return int(client.getpeercert()["serialNumber"], 16)

        def assert_kept(word):
            """What is there now is not taken, for this reason. Who comes makes it look, once a second."""
            wait_for(lambda: serial() == 1002 and [line for line in list(daemon.lines) if "tls_reload" in line and word in line],
                     what=daemon.log)
            self.assertEqual(serial(), 1002)

        install(*self.server)
        daemon = self.start({"tls": {"certificate": current[0], "key": current[1]}})
        old = self.channel(daemon)
        self.assert_echo(old)
        self.assertEqual(serial(), 1001)
        install(*self.authority.sign("renewed", 1002))
        wait_for(lambda: serial() == 1002)
        self.assert_echo(old)  # what is open goes on
        install(self.server[0], self.client[1])  # a key that does not fit
        assert_kept("current.key")
        os.mkfifo(f"{current[1]}.new")
        os.rename(f"{current[1]}.new", current[1])  # nobody writes: who reads it waits for ever
        assert_kept("regular file")
        install(*self.server)
        wait_for(lambda: serial() == 1001)
        self.assert_echo(old)
        daemon.stop()

    def test_handshakes_that_do_not_end_are_ended(self):
        daemon = self.start({**self.tls_settings(), "limits": {"handshake_timeout": 500}})
        hello = bytes.fromhex("16030100f4010000f00303") + bytes(20)
        for data in (b"", hello, b"GET / HTTP/1.1\r\n\r\n", h2.PREFACE):
            with self.subTest(data), socket.create_connection(("127.0.0.1", daemon.grpc_port), timeout=10) as client:
                client.sendall(data)
                try:
                    while client.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        self.assert_echo(self.channel(daemon))
        daemon.stop()

    def test_sigterm_over_tls_answers_what_was_accepted(self):
        daemon = self.start(self.tls_settings())
        channel = self.channel(daemon)
        self.assert_echo(channel)
        futures = [channel.unary_unary(INFER).future(echo_request(256)[0], timeout=60) for _ in range(50)]
        futures[0].result()
        daemon.signal()
        codes = {future.code() for future in futures}
        self.assertLessEqual(codes, {Code.OK, Code.UNAVAILABLE})
        self.assertEqual(daemon.wait(), 0)

    # ---- Unix socket -----------------------------------------------------------------------------
    def test_a_unix_socket_beside_the_port(self):
        path = os.path.join(self.folder.name, "fw.sock")
        with socket.socket(socket.AF_UNIX) as dead:  # what a killed server leaves
            dead.bind(path)
        daemon = self.start({"server": {"unix": path, "loops": 2}, **self.tls_settings()})
        with grpc.insecure_channel(f"unix:{path}") as channel:
            for rows in (1, 300, 4000):
                self.assert_echo(channel, rows)
        self.assert_echo(self.channel(daemon))
        second = Daemon([ECHO], {"server": {"unix": path}})
        with self.assertRaises(AssertionError):
            second.start()
        self.assertIn("in use", "\n".join(second.lines))
        daemon.stop()
        self.assertFalse(os.path.exists(path))
        with open(path, "w"):
            pass  # no socket: not ours to remove
        third = Daemon([ECHO], {"server": {"unix": path}})
        with self.assertRaises(AssertionError):
            third.start()
        self.assertTrue(os.path.exists(path))
        os.unlink(path)

    # ---- tokens ----------------------------------------------------------------------------------
    def test_calls_need_a_token_where_one_is_asked_for(self):
        path = os.path.join(self.folder.name, "tokens")
        with open(path, "w") as file:
            file.write("# who may call\nfirst-token\n\nsecond.token/with+chars==\n")
        daemon = self.start({"auth": {"token_file": path}})
        with grpc.insecure_channel(daemon.address) as channel:
            for value in ("Bearer first-token", "bearer second.token/with+chars=="):
                self.assert_echo(channel, metadata=[("authorization", value)])
            for value in ("Bearer wrong", "Bearer first-toke", "Bearer first-tokenx", "first-token", "Bearer",
                          "Basic first-token", "Bearer first-token first-token", "Bearer # who may call"):
                with self.subTest(value):
                    self.assert_refused(channel, Code.UNAUTHENTICATED, metadata=[("authorization", value)])
            self.assert_refused(channel, Code.UNAUTHENTICATED)
            self.assertEqual(channel.unary_unary(HEALTH)(b"", timeout=30), b"\x08\x01")
        daemon.stop()

    # ---- connections that stay -------------------------------------------------------------------
    def test_a_client_that_is_gone_without_a_word_is_noticed(self):
        daemon = self.start({"limits": {"keepalive_time": 200, "keepalive_timeout": int(scaled(1000))}})

        class Mute(h2.Connection):
            def _handle(self, kind, *rest):
                if kind == h2.PING:
                    self.pings.append(kind)
                else:
                    super()._handle(kind, *rest)

        mute, alive = Mute(daemon.grpc_port), h2.Connection(daemon.grpc_port)
        for connection in (mute, alive):
            connection.call(LIVE, b"")
        alive.read_until(lambda: len(alive.pings) >= 3, 10)
        self.assertEqual(alive.call(LIVE, b"").grpc_status, 0)
        self.assertTrue(mute.wait_closed(10))
        self.assertEqual(len(mute.pings), 1)
        for connection in (mute, alive):
            connection.close()
        daemon.stop()

    def test_idle_connections_are_drained(self):
        daemon = self.start({"limits": {"idle_timeout": 300}})
        with h2.Connection(daemon.grpc_port) as connection:
            connection.call(LIVE, b"")
            self.assertTrue(connection.wait_closed(10))
            self.assertEqual([code for _, code, _ in connection.goaways], [0, 0])
        daemon.stop()

    def test_old_connections_are_drained_and_cut_after_their_grace(self):
        daemon = self.start({"limits": {"connection_age": 1000, "connection_age_grace": 1000}})
        idle, stuck = h2.Connection(daemon.grpc_port), h2.Connection(daemon.grpc_port)
        began = time.monotonic()
        idle.call(LIVE, b"")
        stream = stuck.send_headers(h2.grpc_headers(INFER))
        stuck.send_data(stream, h2.grpc_message(bytes(100))[:50], end_stream=False)
        cut = []  # each connection is read all the time: its PING is to be answered within the grace
        reader = threading.Thread(target=lambda: cut.append(stuck.wait_closed(10) and time.monotonic() - began))
        reader.start()
        self.assertTrue(idle.wait_closed(10))
        age = time.monotonic() - began
        self.assertEqual([code for _, code, _ in idle.goaways], [0, 0])
        self.assertGreater(age, 0.85)
        reader.join()
        self.assertGreater(cut[0], 1.75)  # an age of its own, at least 0.9 s, and the grace
        self.assertEqual(len(stuck.goaways), 2)
        with grpc.insecure_channel(daemon.address) as channel:  # a library follows the GOAWAY and loses nothing
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                self.assert_echo(channel)
        self.assertGreaterEqual(daemon.metrics()["fusewire_connections_accepted_total"], 4)
        daemon.stop()

    # ---- loops -----------------------------------------------------------------------------------
    def test_every_loop_may_accept_for_itself(self):
        daemon = self.start({"server": {"loops": 3, "accept": "kernel"}})

        def listening():  # the kernel's list may leave one out that is there
            with open("/proc/net/tcp") as file:
                return sum(f":{daemon.grpc_port:04X} 00000000:0000 0A" in line for line in file)

        wait_for(lambda: listening() == 3, what=lambda: f"{listening()} listening sockets")
        for _ in range(30):
            with h2.Connection(daemon.grpc_port) as connection:
                request, _ = echo_request()
                self.assertEqual(connection.call(INFER, request).grpc_status, 0)
        daemon.stop()

    # ---- settings --------------------------------------------------------------------------------
    def test_check_reads_certificates_and_tokens(self):
        empty = os.path.join(self.folder.name, "empty")
        with open(empty, "w") as file:
            file.write("# nothing\n")
        fifo = os.path.join(self.folder.name, "fifo")
        os.mkfifo(fifo)
        certificate, key = self.server
        locked = os.path.join(self.folder.name, "locked.key")
        openssl("pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked)
        for name, text, code, words in (
                ("good", f"tls: {{certificate: {certificate}, key: {key}}}", 0, "ok"),
                ("no key", f"tls: {{certificate: {certificate}}}", 2, ":1:20: tls.certificate: tls.key is missing"),
                ("no certificate", f"tls: {{client_ca: {certificate}}}", 2, ":1:18: tls.client_ca: tls.certificate is"),
                ("missing", f"tls: {{certificate: /nowhere.pem, key: {key}}}", 2,
                 ":1:20: tls.certificate: /nowhere.pem: No such file"),
                ("all missing", "tls: {certificate: /nowhere.pem, key: /nowhere.key, client_ca: /nowhere.ca}", 2,
                 "nowhere.ca: No such"),
                ("not PEM", f"tls: {{certificate: {empty}, key: {key}}}", 2, "no start line: not a PEM file"),
                ("passphrase", f"tls: {{certificate: {certificate}, key: {locked}}}", 2, "passphrase"),
                ("wrong key", f"tls: {{certificate: {certificate}, key: {self.client[1]}}}", 2, "tls.key"),
                ("no authority", f"tls: {{certificate: {certificate}, key: {key}, client_ca: {empty}}}", 2, "tls.client_ca"),
                ("no tokens", f"auth: {{token_file: {empty}}}", 2, ":1:20: auth.token_file"),
                ("FIFO for a certificate", f"tls: {{certificate: {fifo}, key: {key}}}", 2, ":1:20: tls.certificate"),
                ("FIFO for a key", f"tls: {{certificate: {certificate}, key: {fifo}}}", 2, "tls.key"),
                ("FIFO for tokens", f"auth: {{token_file: {fifo}}}", 2, ":1:20: auth.token_file"),
                ("no end of tokens", "auth: {token_file: /dev/zero}", 2, ":1:20: auth.token_file"),
                ("FIFO for a collector's authorities", f"trace: {{ca: {fifo}}}", 2, ":1:13: trace.ca"),
                ("no authorities of a collector", "trace: {ca: /nowhere.pem}", 2, ":1:13: trace.ca: cannot read"),
                ("no URL", "trace: {endpoint: 'http://[::1'}", 2, ":1:19: trace.endpoint"),
                ("a folder for a socket", f"server: {{unix: {self.folder.name}}}", 2, ":1:16: server.unix"),
                ("a model twice", f"models: [{ECHO}, {ECHO}]", 2, f":1:{12 + len(ECHO)}: model"),
                ("unknown", "tls: {certficate: x}", 2, "certificate")):
            with self.subTest(name), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text + "\n")
                file.flush()
                found, output = check(["--config", file.name, ECHO])
                self.assertEqual(found, code, output)
                self.assertIn(words, output)


if __name__ == "__main__":
    unittest.main()
