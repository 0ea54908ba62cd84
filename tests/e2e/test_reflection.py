"""grpc.reflection.v1 and v1alpha, by the stock client library and, for the older name, by its messages."""
import os
import unittest

import grpc
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from harness.daemon import Daemon
from harness.run import ROOT

MODELS = os.path.join(ROOT, "tests", "e2e", "models")
METHODS = ["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
           "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
SERVICES = {"inference.GRPCInferenceService", "grpc.health.v1.Health", "fusewire.v1.Fusewire",
            "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
Request = reflection_pb2.ServerReflectionRequest


class ReflectionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon([f"{MODELS}/block.yaml"]).start()
        cls.channel = grpc.insecure_channel(cls.daemon.address)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.daemon.stop()

    def ask(self, method, *requests):
        call = self.channel.stream_stream(method, request_serializer=Request.SerializeToString,
                                          response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
        replies = list(call(iter(requests), timeout=30))
        self.assertEqual(len(replies), len(requests))
        for request, reply in zip(requests, replies):
            self.assertEqual(reply.original_request, request)
        return replies

    def test_the_stock_client_calls_a_method_that_it_only_knows_from_us(self):
        database = ProtoReflectionDescriptorDatabase(self.channel)
        self.assertEqual(set(database.get_services()), SERVICES)
        pool = DescriptorPool(database)
        for name in SERVICES:
            self.assertTrue(pool.FindServiceByName(name).methods)
        method = pool.FindServiceByName("inference.GRPCInferenceService").FindMethodByName("ModelMetadata")
        question = message_factory.GetMessageClass(method.input_type)(name="block")
        answer = message_factory.GetMessageClass(method.output_type)
        call = self.channel.unary_unary(f"/{method.containing_service.full_name}/{method.name}",
                                        request_serializer=type(question).SerializeToString,
                                        response_deserializer=answer.FromString)
        reply = call(question, timeout=30)
        self.assertEqual((reply.name, reply.inputs[0].datatype), ("block", "FP32"))

    def test_files_come_with_their_imports(self):
        for method in METHODS:
            by_symbol, by_name = self.ask(method, Request(file_containing_symbol="inference.GRPCInferenceService"),
                                          Request(file_by_filename="open_inference.proto"))
            files = [descriptor_pb2.FileDescriptorProto.FromString(data)
                     for data in by_symbol.file_descriptor_response.file_descriptor_proto]
            self.assertEqual([file.name for file in files], ["open_inference.proto", "model_config.proto"])
            self.assertEqual(by_name.file_descriptor_response, by_symbol.file_descriptor_response)

    def test_every_kind_of_symbol_is_found_and_nothing_else(self):
        there = {"inference.ModelInferRequest": "open_inference.proto",
                 "inference.ModelInferRequest.InferInputTensor": "open_inference.proto",
                 "inference.ModelInferRequest.InferInputTensor.shape": "open_inference.proto",
                 "inference.ModelInferRequest.raw_input_contents": "open_inference.proto",
                 "inference.GRPCInferenceService.ModelInfer": "open_inference.proto",
                 "inference.ModelConfig": "model_config.proto", "inference.DataType": "model_config.proto",
                 "inference.TYPE_BF16": "model_config.proto",
                 "inference.ModelInstanceGroup.Kind": "model_config.proto",
                 "grpc.health.v1.HealthCheckResponse.ServingStatus": "health.proto",
                 "grpc.health.v1.Health.Watch": "health.proto",
                 "fusewire.v1.Fusewire": "fusewire.proto",
                 "grpc.reflection.v1alpha.ServerReflection": "reflection_v1alpha.proto",
                 "grpc.reflection.v1.ExtensionRequest": "reflection_v1.proto"}
        for method in METHODS:
            replies = self.ask(method, *[Request(file_containing_symbol=name) for name in there])
            for reply, (name, file) in zip(replies, there.items()):
                first = descriptor_pb2.FileDescriptorProto.FromString(reply.file_descriptor_response.file_descriptor_proto[0])
                self.assertEqual(first.name, file, name)
        missing = ["", "inference", "inference.", "inference.ModelInferReques", "inference.ModelInferRequestX",
                   "ModelInferRequest",
                   "inference.ModelInferRequest.", "inference.ModelInferRequest.nothing", "inference..ModelInferRequest",
                   "inference.GRPCInferenceService.ModelInfer.x", "grpc.health.v2.Health", "x" * 2000]
        for reply in self.ask(METHODS[0], *[Request(file_containing_symbol=name) for name in missing]):
            self.assertEqual(reply.error_response.error_code, grpc.StatusCode.NOT_FOUND.value[0], reply.original_request)

    def test_the_rest_of_the_questions(self):
        extension = reflection_pb2.ExtensionRequest(containing_type="inference.ModelConfig", extension_number=7)
        replies = self.ask(METHODS[0], Request(list_services="*"), Request(file_by_filename="nothing.proto"),
                           Request(all_extension_numbers_of_type="inference.ModelConfig"),
                           Request(all_extension_numbers_of_type="inference.GRPCInferenceService"),
                           Request(file_containing_extension=extension), Request(host="somewhere"))
        self.assertEqual({service.name for service in replies[0].list_services_response.service}, SERVICES)
        self.assertEqual(replies[2].all_extension_numbers_response.base_type_name, "inference.ModelConfig")
        self.assertEqual([reply.error_response.error_code for reply in replies], [0, 5, 0, 5, 5, 3])
        self.assertEqual(replies[5].valid_host, "somewhere")

    def test_bad_messages_end_the_stream(self):
        raw = self.channel.stream_stream(METHODS[0])
        bad_name = grpc.StatusCode.INVALID_ARGUMENT
        for message, code in ((b"\xff\xff", grpc.StatusCode.INTERNAL), (bytes(5000), grpc.StatusCode.INVALID_ARGUMENT),
                              (Request(host="x" * 5000).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
                              # A C string would end at the NUL byte and name a file that is here.
                              (Request(file_by_filename="open_inference.proto\0x").SerializeToString(), bad_name),
                              (Request(file_containing_symbol="inference.ModelInferRequest\0").SerializeToString(), bad_name),
                              (Request(host="a\0b", list_services="*").SerializeToString(), bad_name),
                              (b"\x1a\x02\xc3\x28", grpc.StatusCode.INTERNAL)):
            with self.assertRaises(grpc.RpcError) as raised:
                list(raw(iter([message]), timeout=30))
            self.assertEqual(raised.exception.code(), code)
        self.assertEqual(list(raw(iter([]), timeout=30)), [])
        self.assertEqual(len(self.ask(METHODS[1], *[Request(list_services="")] * 500)), 500)
