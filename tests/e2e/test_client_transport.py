"""The bundled client's ways to a daemon: TLS and mTLS with everything that can be wrong about them, tokens, Unix sockets,
IPv6."""
import json
import os
import socket
import subprocess
import tempfile
import time
import unittest

import grpc
import numpy as np
from harness.authority import Authority, openssl
from harness.daemon import Daemon, client_path
from harness.run import ROOT

ECHO = os.path.join(ROOT, "tests", "e2e", "models", "echo.yaml")
UNREACHABLE, USAGE = 3, 2


def own_address():
    """An IPv4 address of this machine that is not loopback, or None. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
        return None if address.startswith("127.") else address


class ClientTransportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        cls.authority = Authority(cls.folder)
        cls.stranger = Authority(cls.folder, "stranger")
        cls.ca = cls.authority.path("pem", "ca")
        cls.server = cls.authority.sign("server")
        cls.client = cls.authority.sign("client")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def start(self, settings):
        daemon = Daemon([ECHO], settings).start()
        self.addCleanup(daemon.kill)
        return daemon

    def tls(self, files=None, **more):
        certificate, key = files or self.server
        return {"tls": {"certificate": certificate, "key": key, **more}}

    def run_client(self, command, *arguments, token=None):
        environment = {**os.environ, **({"FUSEWIRE_TOKEN": token} if token else {})}
        return subprocess.run([client_path(), command, *arguments], capture_output=True, text=True, timeout=120,
                              cwd=self.folder, env=environment)

    def assert_answered(self, url, *arguments, **options):
        done = self.run_client("status", "--url", url, *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def assert_refused(self, words, code, *arguments, **options):
        began = time.monotonic()
        done = self.run_client("status", *arguments, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(words, done.stdout + done.stderr)
        return time.monotonic() - began

    def echo(self, *arguments):
        """`infer` of a few megabytes: many TLS records each way."""
        x = np.random.default_rng(7).normal(size=(1, 3001, 256)).astype(np.float32)
        np.save(f"{self.folder}/x.npy", x)
        done = self.run_client("infer", *arguments, "--model", "echo", "--input", "x=x.npy", "--output-dir", "out")
        self.assertEqual(done.returncode, 0, done.stderr)
        np.testing.assert_array_equal(np.load(f"{self.folder}/out/y.npy"), x)

    def bench(self, *arguments):
        done = self.run_client("bench", *arguments, "--model", "echo", "--quiet", "--json", "-", "--tokens", "1..200",
                               "--requests", "300", "--concurrency", "8", "--connections", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["levels"][0]["variants"][0]["ok"], 300)

    # ---- a server that goes away, models that do not serve -----------------------------------------
    def test_a_load_test_whose_server_dies_counts_until_then(self):
        daemon = self.start({})
        command = [client_path(), "bench", "echo", "--url", daemon.address, "--quiet", "--json", "-", "--tokens", "4",
                   "--warmup", "0s", "--duration", "600s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
            time.sleep(1)
            daemon.kill()
            out, err = bench.communicate(timeout=120)
        self.assertEqual(bench.returncode, 3, err)
        level = json.loads(out)["levels"][0]
        self.assertLess(level["seconds"], 300)  # not the 600 that were asked for
        self.assertAlmostEqual(level["variants"][0]["calls_per_s"] * level["seconds"], level["variants"][0]["ok"], delta=1)

    def test_models_goes_on_behind_one_that_does_not_serve(self):
        daemon = Daemon([ECHO, os.path.join(ROOT, "tests", "e2e", "models", "block.yaml")],
                        {"server": {"model_control": True}}).start()
        self.addCleanup(daemon.kill)
        with grpc.insecure_channel(daemon.address) as channel:
            unload = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelUnload")
            for name, other in (("block", "echo"), ("echo", "block")):
                unload(b"\x12" + bytes([len(name)]) + name.encode())
                done = self.run_client("models", "--url", daemon.address)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"{name}: not ready", done.stdout)
                self.assertIn(f"{other}: ", done.stdout)
        daemon.stop()

    # ---- TLS -------------------------------------------------------------------------------------
    def test_every_command_over_tls(self):
        daemon = self.start(self.tls())
        url = f"localhost:{daemon.grpc_port}"
        trust = ("--url", url, "--tls", "--cacert", self.ca)
        self.assert_answered(f"https://{url}", "--cacert", self.ca)
        self.assert_answered(f"127.0.0.1:{daemon.grpc_port}", "--tls", "--cacert", self.ca)  # the address is in it too
        for arguments in (("models",), ("explain", "echo")):
            done = self.run_client(*arguments, *trust)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("echo", done.stdout)
        self.echo(*trust)
        self.bench(*trust)
        daemon.stop()

    def test_a_certificate_that_is_not_to_be_trusted_is_told_why(self):
        for words, files, arguments in (
                ("is not signed by an authority in", self.server, ["--cacert", self.stranger.path("pem", "stranger")]),
                ("is not signed by an authority in the system's list", self.server, []),
                ("has expired: it was good until 20", self.authority.sign("old", days=-1), ["--cacert", self.ca]),
                ("is for elsewhere.test, 192.0.2.7, not for localhost",
                 self.authority.sign("other", names="DNS:elsewhere.test,IP:192.0.2.7"), ["--cacert", self.ca])):
            daemon = self.start(self.tls(files))
            with self.subTest(words):
                seconds = self.assert_refused(words, UNREACHABLE, "--url", f"localhost:{daemon.grpc_port}", "--tls",
                                              "--wait", "60s", *arguments)
                self.assertLess(seconds, 30)  # such a server does not get better by waiting
            daemon.stop()

    def test_the_name_to_check_can_be_set(self):
        daemon = self.start(self.tls(self.authority.sign("named", names="DNS:models.test")))
        url = ("--url", f"127.0.0.1:{daemon.grpc_port}", "--tls", "--cacert", self.ca)
        self.assert_refused("not for 127.0.0.1", UNREACHABLE, *url)
        self.assert_refused("not for other.test", UNREACHABLE, *url, "--server-name", "other.test")
        self.assert_answered(*url[1:], "--server-name", "models.test")
        daemon.stop()

    def test_a_server_that_asks_for_a_certificate(self):
        daemon = self.start(self.tls(client_ca=self.ca))
        url = (f"localhost:{daemon.grpc_port}", "--tls", "--cacert", self.ca)
        mallory = self.stranger.sign("mallory")
        self.assert_answered(*url, "--cert", self.client[0], "--key", self.client[1])
        self.assert_refused("--cert and --key", UNREACHABLE, "--url", *url)
        self.assert_refused("does not know the authority", UNREACHABLE, "--url", *url, "--cert", mallory[0], "--key", mallory[1])
        self.echo("--url", *url, "--cert", self.client[0], "--key", self.client[1])
        daemon.stop()

    def test_tls_against_clear_text(self):
        with_tls, clear = self.start(self.tls()), self.start({})
        self.assert_refused("if it expects TLS: --tls", UNREACHABLE, "--url", with_tls.address)
        self.assert_refused("does not speak TLS here", UNREACHABLE, "--url", clear.address, "--tls", "--cacert", self.ca)
        for daemon in (with_tls, clear):
            daemon.stop()

    def test_files_and_options_that_do_not_fit_are_usage_errors(self):
        locked, empty = f"{self.folder}/locked.key", f"{self.folder}/empty"
        openssl("pkey", "-in", self.client[1], "-aes128", "-passout", "pass:secret", "-out", locked)
        with open(empty, "w"):
            pass
        for words, arguments in (
                ("--cacert needs --tls", ["--cacert", self.ca]),
                ("--server-name needs --tls", ["--server-name", "x"]),
                ("--cert needs --key", ["--tls", "--cert", self.client[0]]),
                ("--key needs --cert", ["--tls", "--key", self.client[1]]),
                ("--cacert /nowhere.pem: No such file", ["--tls", "--cacert", "/nowhere.pem"]),
                (f"--cacert {empty}: ", ["--tls", "--cacert", empty]),
                (f"--cert {empty}: ", ["--tls", "--cert", empty, "--key", self.client[1]]),
                ("passphrase", ["--tls", "--cert", self.client[0], "--key", locked]),
                (f"--key {self.server[1]}: ", ["--tls", "--cert", self.client[0], "--key", self.server[1]]),
                ("/nowhere", ["--token-file", "/nowhere"]),
                ("no token in it", ["--token-file", empty]),
                ("expected a path of 1 to 107 bytes", ["--url", "unix:" + "x" * 108])):
            with self.subTest(words):
                self.assert_refused(words, USAGE, *arguments)

    # ---- tokens ----------------------------------------------------------------------------------
    def test_tokens_from_a_file_and_from_the_environment(self):
        tokens, mine = f"{self.folder}/tokens", f"{self.folder}/mine"
        with open(tokens, "w") as file:
            file.write("one-token\nother.token==\n")
        with open(mine, "w") as file:
            file.write("# of the build machine\nother.token==\n")
        daemon = self.start({"auth": {"token_file": tokens}})
        url = daemon.address
        self.assert_refused("UNAUTHENTICATED", 1, "--url", url)
        self.assert_refused("UNAUTHENTICATED", 1, "--url", url, token="wrong")
        self.assert_answered(url, token="one-token")
        self.assert_answered(url, "--token-file", mine)
        self.assert_answered(url, "--token-file", mine, token="wrong")  # what was asked for goes before what is around
        self.assert_refused("expected visible ASCII", USAGE, "--url", url, token="two words")
        self.echo("--url", url, "--token-file", mine)
        self.bench("--url", url, "--token-file", mine)
        daemon.stop()

    def test_a_token_in_clear_text_over_a_network_is_remarked_on(self):
        address = own_address()
        if not address:
            self.skipTest("no network interface but loopback")
        daemon = self.start({"server": {"listen": "0.0.0.0:0"}})
        remark = "travels in clear text"
        self.assertIn(remark, self.assert_answered(f"{address}:{daemon.grpc_port}", token="t").stderr)
        self.assertNotIn(remark, self.assert_answered(f"{address}:{daemon.grpc_port}").stderr)
        self.assertNotIn(remark, self.assert_answered(f"127.0.0.1:{daemon.grpc_port}", token="t").stderr)
        daemon.stop()

    # ---- addresses -------------------------------------------------------------------------------
    def test_unix_socket(self):
        path = f"{self.folder}/fw.sock"
        daemon = self.start({"server": {"unix": path}})
        self.assert_answered(f"unix:{path}")
        self.assert_answered("unix:fw.sock")  # the client runs in that folder
        self.assert_answered(f"unix://{path}")
        self.echo("--url", f"unix:{path}")
        self.bench("--url", f"unix:{path}")
        daemon.stop()
        self.assert_refused("No such file", UNREACHABLE, "--url", f"unix:{path}")

    def test_waiting_for_a_server_that_is_not_there_yet(self):
        path = f"{self.folder}/late.sock"
        waiting = subprocess.Popen([client_path(), "infer", "--url", f"unix:{path}", "--model", "echo", "--wait", "60s"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.2)
        daemon = self.start({"server": {"unix": path}})  # takes connections before its model is loaded
        out, err = waiting.communicate(timeout=60)
        self.assertEqual(waiting.returncode, 0, out + err)
        daemon.stop()

    def test_ipv6_addresses(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            self.skipTest("no IPv6 here")
        named = self.authority.sign("v6", names="IP:::1")
        for settings, more in (({}, ()), (self.tls(named), ("--tls", "--cacert", self.ca))):
            daemon = self.start({"server": {"listen": "[::1]:0"}, **settings})
            self.assert_answered(f"[::1]:{daemon.grpc_port}", *more)
            self.echo("--url", f"[::1]:{daemon.grpc_port}", *more)
            daemon.stop()
        self.assert_refused("expected host:port", USAGE, "--url", "::1")


if __name__ == "__main__":
    unittest.main()
