"""The stock Triton client, unmodified, with the few lines that every test would write again."""
import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

__all__ = ["InferenceServerException", "connect", "infer", "parameters", "service_pb2"]

TYPES = {np.dtype(np.float32): "FP32", np.dtype(np.float16): "FP16", np.dtype(np.int64): "INT64",
         np.dtype(np.int32): "INT32", np.dtype(np.uint16): "BF16"}


def connect(daemon):
    return grpcclient.InferenceServerClient(daemon.address)


def inputs_of(arrays):
    """bfloat16 goes as uint16 bits, which the client would refuse to send: so the raw bytes are set by hand."""
    made = []
    for name, array in arrays.items():
        item = grpcclient.InferInput(name, list(array.shape), TYPES[array.dtype])
        if array.dtype == np.uint16:
            item._raw_content = array.tobytes()
        else:
            item.set_data_from_numpy(array)
        made.append(item)
    return made


def infer(client, model, arrays, outputs=None, **options):
    """InferResult of one request; `outputs` names some, None asks for all."""
    asked = None if outputs is None else [grpcclient.InferRequestedOutput(name) for name in outputs]
    return client.infer(model, inputs_of(arrays), outputs=asked, **options)


def parameters(result):
    """The reply's cost parameters as a dictionary."""
    return {name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in result.get_response().parameters.items()}
