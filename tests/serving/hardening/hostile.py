"""Hostile requests made from a model's own signatures, and a process that sends them.

Run as ``python -m tests.serving.hardening.hostile REST_URL GRPC MODEL SEED COUNT``. It sends
COUNT requests, one after the other, and prints how often each outcome came. The same seed sends the
same requests.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import struct
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from timonel.serving.protocols.v2.service import message_class
from timonel.serving.protos.messages import (
    classification_pb2,
    predict_pb2,
    regression_pb2,
    types_pb2,
)
from timonel.wire import tag, varint

HEAVY_SHARE = 0.001
"""How many requests are large, up to `HEAVY_BYTES`."""
HEAVY_BYTES = 60 * 2**20
MALFORMED = "Exception deserializing request!"
RANKS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 31, 32, 33, 60, 64, 65, 254, 255, 300)
DATATYPES = ("FP32", "FP64", "INT32", "INT64", "UINT8", "BOOL", "BYTES", "FP16", "NONE", "")
Tensor = dict[str, Any]


@dataclass(frozen=True)
class Signature:
    """A signature: a data type's name and a shape by input name."""

    name: str
    inputs: dict[str, tuple[str, tuple[int, ...] | None]]


@dataclass
class Request:
    """One request: over HTTP, or over gRPC if it has a method.

    Args:
        kind: What the outcome is counted under.
        path: The HTTP target, or the gRPC method.
        body: The content.
        headers: HTTP headers.
        rpc: Whether it goes over gRPC.
    """

    kind: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    rpc: bool = False


def signatures_of(rest_url: str, model: str) -> list[Signature]:
    """Ask a server for a model's signatures."""
    with urllib.request.urlopen(f"{rest_url}/v1/models/{model}/metadata", timeout=60) as answer:
        content = json.load(answer)
    found = []
    for name, signature in content["metadata"]["signature_def"]["signature_def"].items():
        inputs: dict[str, tuple[str, tuple[int, ...] | None]] = {}
        for key, info in signature["inputs"].items():
            shape = info["tensor_shape"]
            sizes = tuple(int(dim["size"]) for dim in shape["dim"])
            inputs[key] = info["dtype"], None if shape["unknown_rank"] else sizes
        found.append(Signature(name, inputs))
    return sorted(found, key=lambda each: each.name)


class Fuzzer:
    """Makes requests without end.

    Args:
        model: The model's name.
        signatures: What it takes.
        seed: The same seed makes the same requests.
    """

    def __init__(self, model: str, signatures: list[Signature], seed: int) -> None:
        self._model = model
        self._signatures = signatures
        self._chance = random.Random(seed)

    def __iter__(self) -> Iterator[Request]:
        """Make requests."""
        light = (self._rest, self._rest, self._v2, self._grpc, self._grpc_v2, self._examples)
        while True:
            if self._chance.random() < HEAVY_SHARE:
                yield self._heavy()
            else:
                yield self._chance.choice(light)()

    # Tensors

    def _shape(self, declared: tuple[int, ...] | None) -> list[int]:
        chance = self._chance
        if declared is None or chance.random() < 0.15:
            rank = chance.choice(RANKS)
            return [chance.choice((0, 1, 1, 1, 2)) if rank < 8 else 1 for _ in range(rank)]
        shape = [chance.choice((0, 1, 1, 2, 3)) if size < 0 else size for size in declared]
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            if not shape:
                return [chance.choice((0, 1, 2))]
            at = chance.randrange(len(shape))
            change = chance.randrange(5)
            if change == 0:
                shape[at] = max(0, shape[at] + chance.choice((-1, 1)))
            elif change == 1:
                shape[at] = 0
            elif change == 2:
                del shape[at]
            elif change == 3:
                shape.insert(at, chance.choice((0, 1, 2)))
            else:
                shape[at] = chance.choice((16, 100))
        return shape

    def _value(self, dtype: str) -> Any:
        chance = self._chance
        if chance.random() < 0.01:
            return chance.choice(
                (None, True, "x", {}, [], 1e300, -1, 2**63, 2**64, 0.5, {"b64": "?"}, {"b64": ""})
            )
        if dtype == "DT_STRING":
            return chance.choice(("", "text", {"b64": "aGk="}, "\u0000", "\ud83d\ude00"))
        if dtype in {"DT_FLOAT", "DT_DOUBLE"}:
            return chance.choice((0, 1, 0.5, -2.5, 1e30, 1e-30))
        return chance.choice((0, 1, 2, 127))

    def _nested(self, dtype: str, shape: list[int]) -> Any:
        if not shape:
            return self._value(dtype)
        if len(shape) > 8:
            value: Any = self._value(dtype)
            for _ in shape:
                value = [value]
            return value
        found = [self._nested(dtype, shape[1:]) for _ in range(shape[0])]
        if found and self._chance.random() < 0.02:
            found[-1] = self._nested(dtype, shape[2:])  # ragged
        return found

    def _signature(self) -> Signature:
        return self._chance.choice(self._signatures)

    # REST

    def _rest(self) -> Request:
        chance, signature = self._chance, self._signature()
        content: dict[str, Any] = {"signature_name": signature.name}
        tensors = {
            name: self._nested(dtype, self._shape(shape))
            for name, (dtype, shape) in signature.inputs.items()
        }
        way = chance.randrange(6)
        only = next(iter(tensors.values()), 1)
        if way == 0:
            content["inputs"] = tensors
        elif way == 1:
            content["inputs"] = only
        elif way == 2:
            content["instances"] = only
        elif way == 3:
            content["instances"] = [tensors] * chance.choice((0, 1, 3))
        elif way == 4:
            rows = [
                {n: self._nested(d, self._shape(s)[1:]) for n, (d, s) in signature.inputs.items()}
                for _ in range(chance.choice((1, 2, 5)))
            ]
            content["instances"] = rows
        else:
            content[chance.choice(("instances", "inputs", "examples"))] = chance.choice(
                ([], {}, None, "x", [[]], [{}], [[], [1]], 1, [None], {"b64": "aGk="})
            )
        self._spoil(content)
        verb = chance.choice((":predict",) * 8 + (":classify", ":regress", ":explain"))
        body = self._text(content)
        headers = {}
        if chance.random() < 0.1:
            headers["Content-Type"] = chance.choice(
                ("text/plain", "text/csv", "image/png", "application/octet-stream", "text/plain;x")
            )
        return Request("REST", f"/v1/models/{self._model}{verb}", body, headers)

    def _examples(self) -> Request:
        chance = self._chance
        feature = chance.choice((1, 1.5, "x", [1, 2], [1.5], [], [[1]], None, {"b64": "aGk="}))
        example = {chance.choice(("x", "y", "")): feature}
        if chance.random() < 0.5:
            content = {
                "signature_name": self._signature().name,
                "examples": [example] * chance.choice((0, 1, 40)),
            }
            verb = chance.choice((":classify", ":regress"))
            path = f"/v1/models/{self._model}{verb}"
            return Request("REST examples", path, self._text(content))
        method, request_type = chance.choice(
            (
                ("Classify", classification_pb2.ClassificationRequest),
                ("Regress", regression_pb2.RegressionRequest),
            )
        )
        request = request_type()
        request.model_spec.name = self._model
        request.model_spec.signature_name = self._signature().name
        for _ in range(chance.choice((0, 1, 3))):
            made = request.input.example_list.examples.add()
            made.features.feature["x"].float_list.value.append(1)
        raw = self._bytes(request.SerializeToString())
        return Request("gRPC examples", _prediction(method), raw, rpc=True)

    def _v2(self) -> Request:
        chance, signature = self._chance, self._signature()
        inputs = []
        for name, (dtype, shape) in signature.inputs.items():
            sizes = self._shape(shape)
            datatype = _DATATYPES.get(dtype, "FP32")
            if chance.random() < 0.1:
                datatype = chance.choice(DATATYPES)
            data = self._nested(dtype, sizes if chance.random() < 0.5 else [_product(sizes)])
            if chance.random() < 0.1:
                sizes = self._shape(shape)
            inputs.append({"name": name, "datatype": datatype, "shape": sizes, "data": data})
        content: dict[str, Any] = {
            "inputs": inputs,
            "parameters": {"signature_name": signature.name},
        }
        self._spoil(content)
        headers, body = {}, self._text(content)
        if chance.random() < 0.1:
            headers["Inference-Header-Content-Length"] = str(
                chance.choice((0, 1, len(body), len(body) + 1, len(body) // 2, -1, 2**70))
            )
        return Request("REST V2", f"/v2/models/{self._model}/infer", body, headers)

    def _spoil(self, content: dict[str, Any]) -> None:
        chance = self._chance
        if chance.random() < 0.1:
            content[chance.choice(("instances", "inputs", "signature_name", "x", "parameters"))] = (
                chance.choice((None, [], {}, 1, "x", [1], [[1]], {"x": [1]}))
            )
        if content and chance.random() < 0.03:
            del content[chance.choice(list(content))]

    def _text(self, content: Any) -> bytes:
        body = json.dumps(content, ensure_ascii=self._chance.random() < 0.5)
        return self._bytes(body.encode("utf-8", "surrogatepass"))

    def _bytes(self, raw: bytes) -> bytes:
        """Leave most as they are; cut, change, repeat or nest others."""
        chance = self._chance
        if not raw or chance.random() < 0.8:
            return raw
        content = bytearray(raw)
        start = chance.randrange(len(content))
        change = chance.randrange(7)
        if change == 0:
            del content[start:]
        elif change == 1:
            content[start] = chance.randrange(256)
        elif change == 2:
            content[start:start] = chance.randbytes(chance.choice((1, 3, 30)))
        elif change == 3:
            content += content[start:]
        elif change == 4:
            depth = chance.choice((1, 8, 60, 300, 1000, 20_000))
            content[start:start] = chance.choice((b"[", b'{"a":', b"(")) * depth
        elif change == 5:
            depth = chance.choice((1, 8, 60, 300))
            content = bytearray(b"[" * depth + raw + b"]" * depth)
        else:
            content[start:start] = chance.choice((b" ", b"\n", b"1", b'"', b"\\", b"\xff")) * 300
        return bytes(content)

    # gRPC

    def _predict_request(self, signature: Signature) -> Any:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model
        request.model_spec.signature_name = signature.name
        return request

    def _grpc(self) -> Request:
        chance, signature = self._chance, self._signature()
        request = self._predict_request(signature)
        for name, (dtype, shape) in signature.inputs.items():
            proto = request.inputs[name]
            proto.dtype = types_pb2.DataType.Value(dtype)
            if chance.random() < 0.1:
                proto.dtype = chance.choice((0, 1, 2, 3, 7, 9, 10, 19, 20, 21, 101, 999))
            sizes = self._shape(shape)
            if chance.random() < 0.05 and sizes:
                sizes[chance.randrange(len(sizes))] = chance.choice((-1, 2**31, 2**40, 2**62))
            for size in sizes:
                proto.tensor_shape.dim.add(size=size)
            proto.tensor_shape.unknown_rank = chance.random() < 0.01
            count = _product(sizes)
            if dtype == "DT_STRING":
                proto.string_val.extend([b"x"] * min(count, 40))
            elif chance.random() < 0.5:
                width = _WIDTHS.get(dtype, 4)
                proto.tensor_content = bytes(width * min(count, 4000) + chance.choice((0, 0, 0, 1)))
            elif dtype == "DT_INT64":
                proto.int64_val.extend([1] * chance.choice((0, 1, min(count, 40))))
            else:
                proto.float_val.extend([0.5] * chance.choice((0, 1, min(count, 400))))
        if chance.random() < 0.05:
            request.output_filter.append(chance.choice(("", "x", "y")))
        return Request(
            "gRPC", _prediction("Predict"), self._bytes(request.SerializeToString()), rpc=True
        )

    def _grpc_v2(self) -> Request:
        chance, signature = self._chance, self._signature()
        request = message_class("ModelInferRequest")()
        request.model_name = self._model
        request.parameters["signature_name"].string_param = signature.name
        is_raw = chance.random() < 0.5
        for name, (dtype, shape) in signature.inputs.items():
            tensor = request.inputs.add(name=name, datatype=_DATATYPES.get(dtype, "FP32"))
            if chance.random() < 0.1:
                tensor.datatype = chance.choice(DATATYPES)
            sizes = self._shape(shape)
            tensor.shape.extend(sizes)
            count = min(_product(sizes), 4000)
            if is_raw and dtype == "DT_STRING":
                request.raw_input_contents.append(struct.pack("<I", 1) * count)
            elif is_raw:
                request.raw_input_contents.append(bytes(_WIDTHS.get(dtype, 4) * count))
            elif dtype == "DT_STRING":
                tensor.contents.bytes_contents.extend([b"x"] * count)
            else:
                tensor.contents.fp32_contents.extend([0.5] * count)
        raw = self._bytes(request.SerializeToString())
        return Request("gRPC V2", "/inference.GRPCInferenceService/ModelInfer", raw, rpc=True)

    # Large ones

    def _heavy(self) -> Request:
        chance = self._chance
        size = int(2 ** chance.uniform(17, 25.8))
        kind = chance.choice(list(HEAVY))
        head = b'{"signature_name":"%b","instances":' % self._signature().name.encode()
        if chance.random() < 0.3:
            return self._unfolding(size)
        if chance.random() < 0.4:
            name = chance.choice(list(HEAVY_PROTOS))
            raw = HEAVY_PROTOS[name](size)
            spec = tag(1) + varint(len(self._model) + 2)
            spec += tag(1) + varint(len(self._model)) + self._model.encode()
            return Request(f"gRPC large: {name}", _prediction("Predict"), spec + raw, rpc=True)
        path = chance.choice(
            (f"/v1/models/{self._model}:predict", f"/v2/models/{self._model}/infer")
        )
        return Request(f"REST large: {kind}", path, HEAVY[kind](head, size))

    def _unfolding(self, size: int) -> Request:
        """Make a message whose tensors are larger, or have more elements, than it has bytes."""
        chance, signature = self._chance, self._signature()
        request = self._predict_request(signature)
        for name, (dtype, shape) in signature.inputs.items():
            proto = request.inputs[name]
            proto.dtype = types_pb2.DataType.Value(dtype)
            for known in shape or (-1,):
                proto.tensor_shape.dim.add(size=size if known < 0 else known)
            if dtype != "DT_STRING":
                proto.float_val.append(1)
            elif chance.random() < 0.5:
                proto.string_val.append(b"x")
            else:
                proto.tensor_content = bytes(size)
        raw = request.SerializeToString()
        return Request("gRPC large: unfolding", _prediction("Predict"), raw, rpc=True)


def _prediction(method: str) -> str:
    return f"/tensorflow.serving.PredictionService/{method}"


def _product(sizes: list[int]) -> int:
    count = 1
    for size in sizes:
        count = min(count * max(size, 0), 10**6)
    return count


def _repeated(unit: bytes, end: bytes = b"]}") -> Callable[[bytes, int], bytes]:
    return lambda head, size: head + b"[" + unit * (size // len(unit)) + end


HEAVY: dict[str, Callable[[bytes, int], bytes]] = {
    "blanks": lambda head, size: head + b" " * size + b"[1]}",
    "only blanks": lambda _, size: b" " * size,
    "open brackets": lambda head, size: head + b"[" * size,
    "brackets": lambda head, size: head + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
    "objects": _repeated(b"{},", b"{}]}"),
    "open objects": lambda head, size: head + b'{"a":' * (size // 5),
    "rows": _repeated(b'{"a":1},', b"{}]}"),
    "strings": _repeated(b'"a",', b'"a"]}'),
    "one string": lambda head, size: head + b'["' + b"a" * size + b'"]}',
    "escapes": lambda head, size: head + b'["' + b"\\u0041" * (size // 6) + b'"]}',
    "backslashes": lambda head, size: head + b'["' + b"\\" * size,
    "quotes": lambda _, size: b'"' * size,
    "commas": lambda _, size: b"," * size,
    "numbers": _repeated(b"1,", b"1]}"),
    "open numbers": _repeated(b"1.5,", b""),
    "nans": _repeated(b"NaN,", b"1]}"),
    "ragged": _repeated(b"[1],", b"[]]}"),
    "booleans": _repeated(b"true,", b"true]}"),
    "digits": lambda head, size: head + b"[" + b"1" * size + b"]}",
    "escaped quotes": lambda head, size: head + b'"' + b'\\"' * (size // 2) + b'"}',
    "escaped backslashes": lambda head, size: head + b'"' + b"\\\\" * (size // 2) + b'"}',
    "open name": lambda _, size: b'{"a\\":' + b"x" * size + b"}",
    "rows beside numbers": lambda _, size: (
        b'{"x":[' + b"1," * 999 + b'1],"instances":[' + b'{"a":1},' * (size // 8) + b"{}]}"
    ),
    "numbers for any rank": lambda _, size: (
        b'{"signature_name":"any_rank","instances":[' + b"1.5," * (size // 4) + b"NaN]}"
    ),
    "names": lambda _, size: b"{" + b'"a":1,' * (size // 6) + b'"a":1}',
}


def _wrapped(content: bytes, *numbers: int) -> bytes:
    for number in numbers:
        content = tag(number) + varint(len(content)) + content
    return content


HEAVY_PROTOS: dict[str, Callable[[int], bytes]] = {
    "dimensions": lambda size: _wrapped(b"\x12\x00" * (size // 2), 2, 2, 2),
    "inputs": lambda size: b"\x12\x00" * (size // 2),
    "filters": lambda size: b"\x1a\x00" * (size // 2),
    "strings": lambda size: _wrapped(b"\x42\x00" * (size // 2), 2, 2),
    "packed integers": lambda size: _wrapped(b"\x08\x03" + _wrapped(b"\x01" * size, 7), 2, 2),
    "packed floats": lambda size: _wrapped(b"\x08\x01" + _wrapped(bytes(size // 4 * 4), 5), 2, 2),
    "content": lambda size: _wrapped(b"\x08\x01" + _wrapped(bytes(size), 4), 2, 2),
    "unknown fields": lambda size: b"\xf8\x07\x00" * (size // 3),
    "noise": lambda size: b"\xff" * size,
}
_DATATYPES = {
    "DT_FLOAT": "FP32",
    "DT_INT64": "INT64",
    "DT_INT32": "INT32",
    "DT_STRING": "BYTES",
}
_WIDTHS = {"DT_FLOAT": 4, "DT_INT64": 8, "DT_INT32": 4}


class Sender:
    """Sends requests to a server, over connections that it keeps."""

    def __init__(self, rest_url: str, grpc_address: str) -> None:
        self._rest = http.client.HTTPConnection(rest_url.removeprefix("http://"), timeout=120)
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(grpc_address, options)

    def send(self, request: Request) -> str:
        """Return the outcome: an HTTP status, a gRPC code, or an exception's name."""
        if request.rpc:
            try:
                self._channel.unary_unary(request.path)(request.body, timeout=120)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.INTERNAL and error.details() == MALFORMED:
                    return "malformed"
                return str(error.code().name)
            return "OK"
        try:
            self._rest.request("POST", request.path, request.body, request.headers)
            response = self._rest.getresponse()
            response.read()
        except (OSError, http.client.HTTPException) as error:
            self._rest.close()
            return type(error).__name__
        return str(response.status)

    def close(self) -> None:
        self._rest.close()
        self._channel.close()


def main(rest_url: str, grpc_address: str, model: str, seed: str, count: str) -> None:
    """Send requests, and print the outcomes as JSON."""
    outcomes: Counter[str] = Counter()
    fuzzer = iter(Fuzzer(model, signatures_of(rest_url, model), int(seed)))
    with contextlib.closing(Sender(rest_url, grpc_address)) as sender:
        for _ in range(int(count)):
            request = next(fuzzer)
            outcomes[f"{request.kind.partition(':')[0]} {sender.send(request)}"] += 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
