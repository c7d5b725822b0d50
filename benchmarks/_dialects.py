"""How a server is asked: the same numbers in each server's own form, and where its answer is."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _jobs import BenchmarkError
from _served import Case

Answer = Callable[[bytes], np.ndarray]


@dataclass(frozen=True)
class Question:
    """A request, and how its answer is read.

    Attributes:
        path: The path of the URL; over gRPC, the method.
        body: What is posted: JSON, or a protobuf message.
        read: Returns the answer's numbers, float32 [any].
    """

    path: str
    body: bytes
    read: Answer


Ask = Callable[[Case], Question]


def rest_v1(case: Case) -> Question:
    """TensorFlow Serving's REST, which is KServe's first protocol too."""
    path = f"/v1/models/{case.model}:predict"
    return Question(path, _document({"instances": _instances(case)}), _member("predictions"))


def rest_v2(case: Case) -> Question:
    """The Open Inference Protocol over REST."""
    tensor = {"name": "x", "shape": case.x.shape, "datatype": "FP32",
              "data": _floats(case.x.reshape(-1))}  # fmt: skip

    def read(body: bytes) -> np.ndarray:
        return np.array(json.loads(body)["outputs"][0]["data"], np.float32)

    return Question(f"/v2/models/{case.model}/infer", _document({"inputs": [tensor]}), read)


def rest_of_a_function(case: Case) -> Question:
    """BentoML's: a member for each argument of a method."""

    def read(body: bytes) -> np.ndarray:
        return np.array(json.loads(body), np.float32)

    return Question("/predict", _document({"x": _instances(case)}), read)


def grpc_v1(case: Case) -> Question:
    """TensorFlow Serving's PredictionService."""
    if case.is_bytes:
        tensor = _varint_field(1, 7) + _field(2, _shape(case.x))
        tensor += b"".join(_field(8, content) for content in case.x)
    else:
        tensor = _float_tensor(case.x)
    body = _field(1, _field(1, case.model.encode()))
    body += _field(2, _field(1, b"x") + _field(2, tensor))
    path = "/tensorflow.serving.PredictionService/Predict"
    return Question(path, body, _floats_in(case))


def grpc_v1_answer(case: Case) -> bytes:
    """Return an answer of it."""
    return _field(1, _field(1, b"y") + _field(2, _float_tensor(case.y)))


def grpc_v2(case: Case) -> Question:
    """The Open Inference Protocol over gRPC, with raw contents."""
    shape = b"".join(map(_varint, case.x.shape))
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, shape)
    body = _field(1, case.model.encode()) + _field(5, tensor) + _field(7, case.x.tobytes())
    return Question("/inference.GRPCInferenceService/ModelInfer", body, _floats_in(case))


def _float_tensor(x: np.ndarray) -> bytes:
    return _varint_field(1, 1) + _field(2, _shape(x)) + _field(4, x.tobytes())


def _shape(x: np.ndarray) -> bytes:
    return b"".join(_field(2, _varint_field(1, size)) for size in x.shape)


def _instances(case: Case) -> list[Any]:
    if case.is_bytes:
        return [{"b64": base64.b64encode(content).decode()} for content in case.x]
    return _floats(case.x)


def _floats(x: np.ndarray) -> list[Any]:
    # As few digits as tell each float32 from its neighbours.
    return json.loads(_orjson_numpy(x))  # type: ignore[no-any-return]


def _orjson_numpy(x: np.ndarray) -> bytes:
    import orjson

    return orjson.dumps(np.ascontiguousarray(x), option=orjson.OPT_SERIALIZE_NUMPY)


def _document(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _member(name: str) -> Answer:
    return lambda body: np.array(json.loads(body)[name], np.float32)


def _floats_in(case: Case) -> Answer:
    """Find the answer among the bytes of a message.

    Servers put it into different fields; what all of them do is to write the floats in a row.
    """

    def read(body: bytes) -> np.ndarray:
        length = case.y.nbytes
        for begin in range(len(body) - length + 1):
            found = np.frombuffer(body, "<f4", case.y.size, begin)
            if np.allclose(found, case.y.reshape(-1), rtol=1e-3, atol=1e-6):
                return found
        raise BenchmarkError(f"{case.name}: no right answer in {len(body)} bytes")

    return read


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _field(number: int, content: bytes | Iterable[int]) -> bytes:
    content = bytes(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + content
