from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.grpc_requests import (
    MAX_FIELDS,
    has_more_fields,
    parse,
    refuse,
)
from timonel.serving.protocols.v2.service import message_class
from timonel.serving.protos.messages import classification_pb2, predict_pb2, tensor_pb2
from timonel.serving.protos.tensors import from_proto, to_proto
from timonel.serving.status import Code, StatusError
from timonel.wire import tag, varint

Predict = predict_pb2.PredictRequest
Infer = message_class("ModelInferRequest")


def predict(**tensors):
    request = Predict()
    for name, tensor in tensors.items():
        request.inputs[name].CopyFrom(tensor)
    return request


def nested(content, *numbers):
    """Wrap a serialized message in fields of these numbers, the innermost first."""
    for number in numbers:
        content = tag(number) + varint(len(content)) + content
    return content


def count(raw, request_type=Predict):
    """Return how many fields are counted."""
    low, high = 0, len(raw) + 1
    while low < high:
        middle = (low + high) // 2
        if has_more_fields(raw, request_type.DESCRIPTOR, middle):
            low = middle + 1
        else:
            high = middle
    return low


@pytest.mark.parametrize("size", [10, AT_ONCE_BYTES])
def test_requests_are_parsed_whatever_their_size(size):
    request = predict(x=to_proto(np.arange(size, dtype=np.float32)))
    assert parse(request.SerializeToString(), Predict) == request


@pytest.mark.parametrize("raw", [b"\xff", b"\xff" * (AT_ONCE_BYTES + 1)])
def test_damaged_requests_are_refused(raw):
    with pytest.raises(StatusError) as refused:
        parse(raw, Predict)
    assert refused.value.code is Code.INTERNAL


HOSTILE = {
    "dimensions": (Predict, nested(b"\x12\x00" * (MAX_FIELDS + 9), 2, 2, 2)),
    "inputs": (Predict, b"\x12\x00" * (MAX_FIELDS + 9)),
    "strings": (Predict, nested(b"\x42\x00" * (MAX_FIELDS + 9), 2, 2)),
    "single floats": (Predict, nested(b"\x2d\x00\x00\x00\x00" * (MAX_FIELDS + 9), 2, 2)),
    "packed integers": (Predict, nested(bytes(4 * MAX_FIELDS + 40), 7, 2, 2)),
    "unknown fields": (Predict, b"\xf8\x07\x00" * (MAX_FIELDS + 9)),
    "examples": (
        classification_pb2.ClassificationRequest,
        nested(b"\x0a\x00" * (MAX_FIELDS + 9), 1, 2),
    ),
    "tensors of the Open Inference Protocol": (Infer, b"\x2a\x00" * (MAX_FIELDS + 9)),
    "its integers": (Infer, nested(bytes(4 * MAX_FIELDS + 40), 2, 5, 5)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_requests_with_too_many_fields_are_refused(case):
    request_type, raw = HOSTILE[case]
    with pytest.raises(
        StatusError, match=f"The request has more than {MAX_FIELDS} fields"
    ) as refused:
        parse(raw, request_type)
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_contents_of_tensors_do_not_count():
    content = tensor_pb2.TensorProto(tensor_content=bytes(2**20))
    floats = to_proto(np.zeros(2**18, np.float32))
    texts = tensor_pb2.TensorProto(string_val=[bytes(2**19)] * 2)
    request = predict(a=content, b=floats, c=texts)
    assert count(request.SerializeToString()) < 50


@given(st.lists(st.binary(max_size=9), max_size=20), st.lists(st.integers(0, 99), max_size=9))
def test_every_value_counts(texts, sizes):
    tensor = tensor_pb2.TensorProto(string_val=texts)
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    assert count(predict(x=tensor).SerializeToString()) >= len(texts) + len(sizes)


@given(st.binary(max_size=200), st.integers(0, 9))
def test_any_bytes_can_be_counted(raw, limit):
    assert has_more_fields(raw, Predict.DESCRIPTOR, limit) in {True, False}


def test_shapes_with_very_many_dimensions_are_refused_at_once():
    tensor = tensor_pb2.TensorProto(dtype=1)
    for _ in range(100_000):
        tensor.tensor_shape.dim.add(size=2**62)
    with pytest.raises(StatusError, match="tensor parsing error: x"):
        from_proto("x", tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        tensor_pb2.TensorProto(dtype=1, float_val=[1.0]),
        tensor_pb2.TensorProto(dtype=7, string_val=[b"x"]),
        tensor_pb2.TensorProto(dtype=7, tensor_content=bytes(4_000_000)),
    ],
)
def test_few_bytes_do_not_unfold_to_large_tensors(tensor):
    tensor.tensor_shape.dim.add(size=4_000_000)
    with pytest.raises(StatusError, match="tensor parsing error: x"):
        from_proto("x", tensor)


def test_a_small_tensor_may_repeat_its_last_value():
    tensor = tensor_pb2.TensorProto(dtype=1, float_val=[1.0, 2.0])
    tensor.tensor_shape.dim.add(size=1000)
    assert from_proto("x", tensor).tolist() == [1.0] + [2.0] * 999


class Request:
    """Stands for a large request."""


@contextlib.asynccontextmanager
async def served(handler):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_a_refused_call_keeps_nothing_of_its_request(kind):
    kept = []

    def deserialize(_):
        request = Request()
        kept.append(weakref.ref(request))
        return request

    async def unary(request, context):
        await refuse(context, StatusError(Code.NOT_FOUND, f"no {type(request).__name__}"))
        return b"not sent"

    async def stream(request, context):
        yield b"sent"
        await refuse(context, StatusError(Code.NOT_FOUND, f"no {type(request).__name__}"))

    async def called(channel):
        if kind == "unary":
            await channel.unary_unary("/s/m")(b"")
        else:
            async for answer in channel.unary_stream("/s/m")(b""):
                assert answer == b"sent"

    async def main():
        make = {
            "unary": (grpc.unary_unary_rpc_method_handler, unary),
            "stream": (grpc.unary_stream_rpc_method_handler, stream),
        }
        maker, behaviour = make[kind]
        async with served(maker(behaviour, request_deserializer=deserialize)) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await called(channel)
                assert caught.value.code() is grpc.StatusCode.NOT_FOUND
                assert caught.value.details() == "no Request"

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()
