"""Every bad request: its status, a message that names the field, what was found and what was expected; and after each
one the daemon answers an honest request right."""
import os
import struct
import threading
import unittest

import grpc
import numpy as np
from harness import protobuf_bytes as pb
from harness.daemon import Daemon
from harness.run import ROOT
from harness.tiny_bert import VOCABULARY, write as write_tiny

import tempfile

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
SERVICE = "/inference.GRPCInferenceService/"
Code = grpc.StatusCode


def raw_ids(*ids):
    return struct.pack(f"<{len(ids)}q", *ids)


def ids_tensor(shape, contents=None, name="input_ids", datatype="INT64"):
    return pb.tensor(name, datatype, shape, contents)


def block_tensor(shape=(1, 48), datatype="FP32", contents=None, name="x"):
    return pb.tensor(name, datatype, shape, contents)


ROW = bytes(192)  # one row of the block model
GOOD_INPUT = ids_tensor([1, 2])
GOOD_RAW = raw_ids(1, 2)


def tiny(inputs=(GOOD_INPUT,), raw=(GOOD_RAW,), **options):
    return pb.infer_request("tiny", inputs, raw, **options)


def block(inputs, raw=(ROW,), **options):
    return pb.infer_request("block", inputs, raw, **options)


BIG = (1 << 62)
# name -> (request, code, words that the message must have)
REQUESTS = {
    # models and versions
    "unknown model": (pb.infer_request("nobody", [GOOD_INPUT], [GOOD_RAW]), Code.NOT_FOUND, ["nobody"]),
    "empty model name": (pb.infer_request("", [GOOD_INPUT], [GOOD_RAW]), (Code.NOT_FOUND, Code.INVALID_ARGUMENT), []),
    "empty request": (b"", (Code.NOT_FOUND, Code.INVALID_ARGUMENT), []),
    "unknown version": (tiny(version="999"), Code.NOT_FOUND, ["999"]),
    "version -1": (tiny(version="-1"), Code.NOT_FOUND, ["-1"]),
    "version 01": (tiny(version="01"), Code.NOT_FOUND, ["01"]),
    "version of 20 digits": (tiny(version="9" * 20), Code.NOT_FOUND, ["9999"]),
    "name with a NUL inside": (pb.infer_request("tiny\0x", [GOOD_INPUT], [GOOD_RAW]),
                               (Code.NOT_FOUND, Code.INVALID_ARGUMENT), []),
    "name that is not UTF-8": (pb.infer_request(b"t\xff\xfe", [GOOD_INPUT], [GOOD_RAW]),
                               (Code.INVALID_ARGUMENT, Code.INTERNAL, Code.NOT_FOUND), []),
    "name of 100 KiB": (pb.infer_request("n" * 100000, [GOOD_INPUT], [GOOD_RAW]),
                        (Code.NOT_FOUND, Code.INVALID_ARGUMENT), []),
    # inputs
    "no inputs": (tiny((), ()), Code.INVALID_ARGUMENT, ["input"]),
    "unknown input": (tiny([ids_tensor([1, 2], name="ids")]), Code.INVALID_ARGUMENT, ["ids", "input_ids"]),
    "duplicate input": (tiny([GOOD_INPUT] * 2, [GOOD_RAW] * 2), Code.INVALID_ARGUMENT, ["input_ids", "twice"]),
    "duplicate input, one buffer": (tiny([GOOD_INPUT] * 2), Code.INVALID_ARGUMENT, ["input_ids"]),
    "missing needed input": (tiny([ids_tensor([1, 2], name="attention_mask")]), Code.INVALID_ARGUMENT, ["input_ids"]),
    "wrong datatype": (tiny([ids_tensor([1, 2], datatype="INT32")]), Code.INVALID_ARGUMENT, ["INT32", "INT64"]),
    "unknown datatype": (tiny([ids_tensor([1, 2], datatype="INT63")]), Code.INVALID_ARGUMENT, ["INT63", "INT64"]),
    "no datatype": (tiny([ids_tensor([1, 2], datatype="")]), Code.INVALID_ARGUMENT, ["INT64"]),
    "BYTES": (block([block_tensor(datatype="BYTES")]), Code.INVALID_ARGUMENT, ["BYTES", "FP32"]),
    # shapes
    "no shape": (tiny([ids_tensor([])]), Code.INVALID_ARGUMENT, ["input_ids", "shape"]),
    "rank too small": (tiny([ids_tensor([2])]), Code.INVALID_ARGUMENT, ["input_ids", "[2]"]),
    "rank too big": (tiny([ids_tensor([1, 1, 2])]), Code.INVALID_ARGUMENT, ["[1,1,2]|[1, 1, 2]"]),
    "rank of 1000": (tiny([ids_tensor([1] * 1000)]), Code.INVALID_ARGUMENT, ["input_ids|rank|shape"]),
    "wrong width": (block([block_tensor((1, 47))], [bytes(188)]), Code.INVALID_ARGUMENT, ["47", "48"]),
    "empty batch": (tiny([ids_tensor([0, 2])], [b""]), Code.INVALID_ARGUMENT, ["batch", "0"]),
    "empty sequence": (tiny([ids_tensor([1, 0])], [b""]), Code.INVALID_ARGUMENT, ["seq", "0"]),
    "negative batch": (tiny([ids_tensor([-1, 2])]), Code.INVALID_ARGUMENT, ["batch", "-1"]),
    "most negative dimension": (tiny([ids_tensor([1, -(1 << 63)])]), Code.INVALID_ARGUMENT, ["seq"]),
    "dimensions that overflow": (tiny([ids_tensor([BIG, 8])]), Code.INVALID_ARGUMENT, ["input_ids"]),
    "dimensions that overflow to the right size": (tiny([ids_tensor([1 << 32, 1 << 32])], [b""]),
                                                   Code.INVALID_ARGUMENT, ["input_ids"]),
    "rows that overflow": (block([block_tensor(((1 << 63) // 192 + 1, 48))]), Code.INVALID_ARGUMENT, ["x"]),
    "sequence over the model's limit": (tiny([ids_tensor([1, 161])], [bytes(8 * 161)]), Code.INVALID_ARGUMENT, ["161", "160"]),
    "more tokens than a batch": (tiny([ids_tensor([6, 160])], [bytes(8 * 960)]), Code.RESOURCE_EXHAUSTED, ["960|512"]),
    "more rows than a batch": (block([block_tensor((257, 48))], [bytes(257 * 192)]), Code.RESOURCE_EXHAUSTED, ["257", "256"]),
    "mask of another shape": (tiny([GOOD_INPUT, ids_tensor([1, 3], name="attention_mask")], [GOOD_RAW, raw_ids(1, 1, 1)]),
                              Code.INVALID_ARGUMENT, ["attention_mask", "3", "2"]),
    # bytes
    "one byte too few": (tiny(raw=[GOOD_RAW[:-1]]), Code.INVALID_ARGUMENT, ["input_ids", "15", "16"]),
    "one byte too many": (tiny(raw=[GOOD_RAW + b"\0"]), Code.INVALID_ARGUMENT, ["input_ids", "17", "16"]),
    "no bytes": (tiny(raw=[b""]), Code.INVALID_ARGUMENT, ["input_ids", "16"]),
    "half the bytes": (block([block_tensor()], [ROW[:96]]), Code.INVALID_ARGUMENT, ["96", "192"]),
    "a buffer too many": (tiny(raw=[GOOD_RAW, GOOD_RAW]), Code.INVALID_ARGUMENT, ["raw_input_contents", "2", "1"]),
    "neither raw nor typed": (tiny(raw=[]), Code.INVALID_ARGUMENT, ["input_ids"]),
    # typed contents
    "both forms": (tiny([ids_tensor([1, 2], pb.chunk(3, b"\1\2"))]), Code.INVALID_ARGUMENT, ["raw_input_contents", "contents"]),
    "contents too short": (tiny([ids_tensor([1, 2], pb.chunk(3, b"\1"))], []), Code.INVALID_ARGUMENT, ["input_ids"]),
    "contents too long": (tiny([ids_tensor([1, 2], pb.chunk(3, b"\1\2\3"))], []), Code.INVALID_ARGUMENT, ["input_ids"]),
    "contents of another type": (tiny([ids_tensor([1, 2], pb.chunk(2, b"\1\2"))], []), Code.INVALID_ARGUMENT, ["int64_contents"]),
    "contents of two types": (tiny([ids_tensor([1, 2], pb.chunk(3, b"\1\2") + pb.chunk(2, b"\1\2"))], []),
                              Code.INVALID_ARGUMENT, ["input_ids"]),
    "fp32 contents cut in a number": (block([block_tensor(contents=pb.chunk(6, ROW[:-1]))], []),
                                      (Code.INVALID_ARGUMENT, Code.INTERNAL), []),
    "bf16 in typed contents": (pb.infer_request("echo-bf16", [pb.tensor("x", "BF16", [1, 8], pb.chunk(6, bytes(32)))]),
                               Code.INVALID_ARGUMENT, ["BF16", "raw_input_contents"]),
    # values
    "token id past the table": (tiny(raw=[raw_ids(1, VOCABULARY)]), Code.INVALID_ARGUMENT,
                                ["input_ids", f"[0, 1] is {VOCABULARY}", "(position 1 of sequence 0, flat index 1)"]),
    "token id past the table behind a masked one": (
        tiny([ids_tensor([2, 3]), ids_tensor([2, 3], name="attention_mask")],
             [raw_ids(1, 2, VOCABULARY, 1, 2, VOCABULARY + 7), raw_ids(1, 1, 0, 0, 1, 1)]), Code.INVALID_ARGUMENT,
        ["input_ids", f"[1, 2] is {VOCABULARY + 7}", "(position 2 of sequence 1, flat index 5)"]),
    "mask of twos": (tiny([ids_tensor([2, 2]), ids_tensor([2, 2], name="attention_mask")],
                            [raw_ids(1, 2, 1, 2), raw_ids(1, 1, 2, 1)]), Code.INVALID_ARGUMENT,
                       ["attention_mask", "[1, 0] is 2", "(position 0 of sequence 1, flat index 2)"]),
    "negative token id": (tiny(raw=[raw_ids(-1, 1)]), Code.INVALID_ARGUMENT, ["input_ids", "-1"]),
    "huge token id": (tiny(raw=[raw_ids(1, (1 << 63) - 1)]), Code.INVALID_ARGUMENT, ["input_ids"]),
    "token id that wraps to a small one": (tiny(raw=[raw_ids(1, 1 << 32)]), Code.INVALID_ARGUMENT, ["input_ids", str(1 << 32)]),
    "token type past the table": (tiny([GOOD_INPUT, ids_tensor([1, 2], name="token_type_ids")], [GOOD_RAW, raw_ids(0, 2)]),
                                  Code.INVALID_ARGUMENT, ["token_type_ids", "2"]),
    # outputs
    "unknown output": (tiny(outputs=["missing"]), Code.INVALID_ARGUMENT, ["missing", "sentence_embedding"]),
    "known and unknown output": (tiny(outputs=["sentence_embedding", "missing"]), Code.INVALID_ARGUMENT, ["missing"]),
    "output twice": (tiny(outputs=["sentence_embedding"] * 2), Code.INVALID_ARGUMENT, ["sentence_embedding"]),
    # parameters
    "fusion of another word": (tiny(parameters=[("fusion", "maybe")]), Code.INVALID_ARGUMENT, ["fusion", "maybe", "on", "off"]),
    "fusion of another type": (tiny(parameters=[("fusion", True)]), Code.INVALID_ARGUMENT, ["fusion"]),
    "fusion that is not loaded": (pb.infer_request("echo-bf16", [pb.tensor("x", "BF16", [1, 8])], [bytes(16)],
                                                   parameters=[("fusion", "off")]),
                                  Code.INVALID_ARGUMENT, ["fusion", "echo-bf16"]),
    "parameter without a value": (tiny() + pb.chunk(4, pb.chunk(1, "fusion")), Code.INVALID_ARGUMENT, ["fusion"]),
    "shared memory": (tiny([GOOD_INPUT + pb.chunk(4, pb.parameter("shared_memory_region", "r"))]), Code.INVALID_ARGUMENT,
                      ["shared memory"]),
    # floods of parts
    "70000 empty inputs": (b"\x2a\x00" * 70000, (Code.INVALID_ARGUMENT, Code.INTERNAL, Code.RESOURCE_EXHAUSTED), []),
    "1000 different parameters": (tiny(parameters=[(f"p{i}", i) for i in range(1000)]),
                                  (Code.INVALID_ARGUMENT, Code.INTERNAL, Code.RESOURCE_EXHAUSTED), []),
    "70000 empty buffers": (tiny() + b"\x3a\x00" * 70000, (Code.INVALID_ARGUMENT, Code.INTERNAL, Code.RESOURCE_EXHAUSTED), []),
    "70000 outputs": (tiny() + b"\x32\x00" * 70000, (Code.INVALID_ARGUMENT, Code.INTERNAL, Code.RESOURCE_EXHAUSTED), []),
    "an id of 100 KiB": (tiny(request_id="i" * 100000), Code.INVALID_ARGUMENT, ["id"]),
}
# Odd, but right.
FINE = {
    "parameters of others": tiny(parameters=[("priority", 1), ("note", "x"), ("rate", 0.5), ("flag", True)]),
    "the last of two equal parameters counts": tiny(parameters=[("fusion", "maybe"), ("fusion", "off")]),
    "one parameter 70000 times": tiny() + b"\x22\x00" * 70000,
    "version by name": tiny(version="1"),
    "unpacked typed contents": tiny([ids_tensor([1, 2], pb.number(3, 1) + pb.number(3, 2))], []),
}


class BadInputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        models = [write_tiny(cls.folder.name)] + [f"{MODELS}/{name}.yaml" for name in ("echo-bf16", "block")]
        cls.daemon = Daemon(models).start()
        cls.channel = grpc.insecure_channel(cls.daemon.address)
        cls.honest = cls.call(tiny())

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.daemon.stop()
        cls.folder.cleanup()

    @classmethod
    def call(cls, message, method="ModelInfer"):
        return cls.channel.unary_unary(SERVICE + method)(message, timeout=30)

    def outputs_of(self, reply):
        return [value for field, value in pb.fields(reply) if field == 6]

    def test_every_bad_request_gets_its_status_and_a_message_that_helps(self):
        for name, (message, codes, words) in REQUESTS.items():
            with self.subTest(name):
                with self.assertRaises(grpc.RpcError) as raised:
                    self.call(message)
                codes = codes if isinstance(codes, tuple) else (codes,)
                details = raised.exception.details()
                self.assertIn(raised.exception.code(), codes, details)
                for word in words:
                    self.assertTrue(any(choice in details for choice in word.split("|")), f"no {word!r} in: {details}")
                self.assertEqual(self.outputs_of(self.call(tiny())), self.outputs_of(self.honest))
        self.assertTrue(self.daemon.alive())

    def test_odd_requests_that_are_right(self):
        for name, message in FINE.items():
            with self.subTest(name):
                reply = self.outputs_of(self.call(message))
                self.assertEqual([len(value) for value in reply], [len(value) for value in self.outputs_of(self.honest)])

    def test_bad_requests_beside_good_ones_disturb_nobody(self):
        failures = []

        def honest(count):
            for _ in range(count):
                if self.outputs_of(self.call(tiny())) != self.outputs_of(self.honest):
                    found = [np.frombuffer(value, np.float32) for value in self.outputs_of(self.call(tiny()))]
                    expected = [np.frombuffer(value, np.float32) for value in self.outputs_of(self.honest)]
                    if not all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, expected)):
                        failures.append("an honest answer changed")

        def hostile():
            for name, (message, _, _) in REQUESTS.items():
                try:
                    self.call(message)
                    failures.append(f"{name} was served")
                except grpc.RpcError:
                    pass

        threads = [threading.Thread(target=honest, args=(40,)) for _ in range(3)]
        threads += [threading.Thread(target=hostile) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_other_methods_refuse_what_they_do_not_know(self):
        for method, message, code in (
            ("ModelReady", pb.chunk(1, "nobody"), (Code.NOT_FOUND, None)),
            ("ModelMetadata", pb.chunk(1, "nobody"), (Code.NOT_FOUND,)),
            ("ModelMetadata", b"", (Code.NOT_FOUND, Code.INVALID_ARGUMENT)),
            ("ModelMetadata", b"\x0a\xff\x01", (Code.INTERNAL, Code.INVALID_ARGUMENT)),
            ("ModelMetadata", pb.chunk(1, "tiny") + pb.chunk(2, "7"), (Code.NOT_FOUND,)),
            ("ServerReady", b"\x0a\xff\x01", (Code.INTERNAL, Code.INVALID_ARGUMENT)),
            ("ModelUnheardOf", b"", (Code.UNIMPLEMENTED,)),
        ):
            with self.subTest(method=method, message=message):
                try:
                    self.call(message, method)
                    found = None
                except grpc.RpcError as error:
                    found = error.code()
                self.assertIn(found, code)

    def test_a_misspelt_model_is_told_the_nearest(self):
        names, infer = pb.chunk(1, "Bolck"), pb.infer_request("Bolck", [GOOD_INPUT], [GOOD_RAW])
        for path, message in [(SERVICE + "ModelInfer", infer),
                              *((SERVICE + method, names) for method in ("ModelReady", "ModelMetadata", "ModelConfig",
                                                                         "ModelStatistics")),
                              *(("/fusewire.v1.Fusewire/" + method, names) for method in ("Explain", "Audit"))]:
            with self.subTest(path), self.assertRaises(grpc.RpcError) as raised:
                self.channel.unary_unary(path)(message, timeout=30)
            self.assertEqual(raised.exception.code(), Code.NOT_FOUND)
            self.assertEqual(raised.exception.details(),
                             'model_name: no model "Bolck" is served; did you mean "block"?')

    def test_an_over_large_message_is_refused_and_the_connection_lives(self):
        with Daemon([f"{MODELS}/block.yaml"], {"limits": {"message_bytes": 20000}}) as daemon:
            channel = grpc.insecure_channel(daemon.address)
            call = channel.unary_unary(SERVICE + "ModelInfer")
            with self.assertRaises(grpc.RpcError) as raised:
                call(block([block_tensor((256, 48))], [bytes(256 * 192)]), timeout=30)
            self.assertEqual(raised.exception.code(), Code.RESOURCE_EXHAUSTED)
            self.assertIn("20000", raised.exception.details())
            self.assertTrue(call(block([block_tensor()]), timeout=30))
            channel.close()
