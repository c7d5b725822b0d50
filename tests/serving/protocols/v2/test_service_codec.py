from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.protocols.v2.arrays import NAMES, arrays, outcome, same
from tests.serving.protocols.v2.test_tensors import refusal
from timonel.serving.protocols.v2.requests import InferRequest
from timonel.serving.protocols.v2.service import (
    ModelInferRequest,
    ModelInferResponse,
    decode,
    encode,
)
from timonel.serving.protocols.v2.tensors import datatype_of, to_raw
from timonel.serving.status import Code


def sent_back(response):
    """A response as a request with the same tensors."""
    request = ModelInferRequest(id=response.id, raw_input_contents=response.raw_output_contents)
    for output in response.outputs:
        tensor = request.inputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        if output.HasField("contents"):
            tensor.contents.CopyFrom(output.contents)
    return request


@given(st.dictionaries(NAMES, arrays(), max_size=3), st.booleans())
def test_what_is_written_can_be_read_again_typed_or_raw(outputs, is_raw):
    request = InferRequest({}, {}, "7", is_raw=is_raw)
    response = ModelInferResponse.FromString(encode(request, "m", 3, outputs))
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")
    is_raw |= any(datatype_of("", array) in {"FP16", "BF16"} for array in outputs.values())
    assert len(response.raw_output_contents) == (len(outputs) if is_raw else 0)
    read = decode(sent_back(response))
    assert read.is_raw == bool(outputs and is_raw)
    assert read.request_id == "7"
    assert read.inputs.keys() == outputs.keys()
    assert all(same(read.inputs[name], array) for name, array in outputs.items())


def request(datatype="FP32", shape=(2,), raw=None, **contents):
    message = ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def with_parameters(where=None, **values):
    message = request(fp32_contents=[1, 2])
    target = message if where is None else getattr(message, where)
    if where == "outputs":
        message.outputs.add(name="y")
    for name, (field, value) in values.items():
        setattr((target if where is None else target[0]).parameters[name], field, value)
    return message


def test_parameters_of_every_kind_are_read():
    read = decode(
        with_parameters(
            signature_name=("string_param", "s"),
            timeout=("uint64_param", 2500000),
            mine=("double_param", 1.5),
            other=("bool_param", True),
        )
    )
    assert (read.parameters.signature_name, read.parameters.timeout_s) == ("s", 2.5)
    empty = ModelInferRequest()
    empty.parameters["unset"].SetInParent()
    assert decode(empty).parameters.signature_name == ""


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (request(raw=b"..."), "expected 8 bytes for input x, FP32 [2], got 3"),
        (request(raw=b"." * 8, fp32_contents=[1]), "has both contents and raw_input_contents"),
        (request(fp32_contents=[1]), "expected the data of input x to be 2 values, flat, got 1"),
        (request("BYTES", bytes_contents=[b""]), "to be 2 values, flat, got 1"),
        (request(fp64_contents=[1, 2]), "FP32, in fp32_contents, got fp64_contents"),
        (request("INT8", int_contents=[1, 200]), "to hold INT8 values, got 200"),
        (request("UINT16", uint_contents=[1, 2**16]), "to hold UINT16 values, got 65536"),
        (request("FP16"), "Send input x of type FP16 in raw_input_contents"),
        (request("FLOAT"), "got 'FLOAT'"),
        (request(shape=(-1,)), "must have integers of at least 0, got -1"),
        (request(shape=(0, 2**62, 2**62)), "is too large"),
        (with_parameters(sequence_id=("int64_param", 4)), "does not have sequences of requests"),
        (with_parameters(sequence_id=("string_param", "a")), "sequences of requests"),
        (with_parameters(timeout=("int64_param", -1)), "got -1"),
        (with_parameters(signature_name=("bool_param", True)), "to be a string, got True"),
        (
            with_parameters("inputs", shared_memory_region=("string_param", "r")),
            "shared_memory_region of input x is not supported",
        ),
        (
            with_parameters("outputs", classification=("int64_param", 2)),
            "classification of output y is not supported",
        ),
    ],
)
def test_what_is_wrong_is_told(message, told):
    assert told in refusal(decode, message)


def test_names_are_given_once():
    message = request(fp32_contents=[1, 2])
    message.inputs.append(message.inputs[0])
    assert refusal(decode, message) == "Input x occurs more than once."
    message.raw_input_contents.append(b"")
    assert refusal(decode, message) == "expected raw_input_contents for each of 2 inputs, got 1"
    message = request(fp32_contents=[1, 2])
    message.outputs.add(name="y")
    message.outputs.add(name="y")
    assert refusal(decode, message) == "Output y occurs more than once."


def test_raw_contents_are_not_copied():
    array = np.arange(1000, dtype=np.float64)
    read = decode(request("FP64", array.shape, to_raw(array)))
    assert same(read.inputs["x"], array)
    assert not read.inputs["x"].flags.owndata


def parsed(content):
    try:
        return ModelInferRequest.FromString(content)
    except DecodeError:
        return ModelInferRequest()


@given(st.binary(max_size=80))
def test_any_message_is_read_or_refused(content):
    prefix = request(fp32_contents=[1, 2]).SerializeToString()
    for text in (content, prefix + content):
        found = outcome(decode, parsed(text))
        assert isinstance(found, InferRequest) or found is Code.INVALID_ARGUMENT
