"""Protobuf messages byte by byte, so that a test can also send what no library would."""
import struct


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def chunk(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def double(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


def parameter(name, value, kinds={bool: 1, int: 2, str: 3, float: 4}):
    """One entry of a map<string, InferParameter>, without its own field number."""
    field = kinds[type(value)]
    if field == 3:
        inner = chunk(3, value)
    elif field == 4:
        inner = double(4, value)
    else:
        inner = number(field, int(value))
    return chunk(1, name) + chunk(2, inner)


def tensor(name, datatype, shape, contents=None):
    """InferInputTensor; `contents` is an InferTensorContents message."""
    message = chunk(1, name) + chunk(2, datatype) + chunk(3, b"".join(varint(n) for n in shape))
    return message + (chunk(5, contents) if contents is not None else b"")


def infer_request(model, inputs=(), raw=(), outputs=(), parameters=(), version="", request_id=""):
    """ModelInferRequest from ready-made tensor messages, raw buffers, output names and (name, value) parameters."""
    message = chunk(1, model)
    message += chunk(2, version) if version else b""
    message += chunk(3, request_id) if request_id else b""
    message += b"".join(chunk(4, parameter(name, value)) for name, value in parameters)
    message += b"".join(chunk(5, item) for item in inputs)
    message += b"".join(chunk(6, chunk(1, name)) for name in outputs)
    return message + b"".join(chunk(7, data) for data in raw)


def fields(message):
    """[(field, value)] of a message: ints for varints, bytes for the rest."""
    out, at = [], 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(message, at)
        elif kind == 2:
            length, at = _read_varint(message, at)
            value, at = message[at:at + length], at + length
        else:
            size = {1: 8, 5: 4}[kind]
            value, at = message[at:at + size], at + size
        out.append((key >> 3, value))
    return out


def _read_varint(message, at):
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
