"""Read and write safetensors files with nothing but numpy, so that what checks the daemon shares no code with it."""
import json
import struct

import numpy as np

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8}


def bf16_from_float(values):
    """Round to the nearest bfloat16, ties to even; the result is its 16 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def bf16_to_float(bits):
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


def load(path):
    """{name: array}; bfloat16 comes back as float32."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data = file.read()
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            array = bf16_to_float(np.frombuffer(data[begin:end], np.uint16))
        else:
            array = np.frombuffer(data[begin:end], _TYPES[entry["dtype"]])
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def save(path, arrays, dtype="F32"):
    """Write {name: array} in one floating type (F32, F16 or BF16)."""
    header, blobs, offset = {}, [], 0
    for name, array in arrays.items():
        if dtype == "BF16":
            blob = bf16_from_float(array).tobytes()
        else:
            blob = np.ascontiguousarray(array, _TYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    write_raw(path, json.dumps(header).encode(), b"".join(blobs))


def write_raw(path, header, data, declared=None):
    """The file format by hand; `declared` may lie about the header's length."""
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header) if declared is None else declared) + header + data)
