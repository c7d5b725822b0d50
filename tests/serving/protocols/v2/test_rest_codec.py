from __future__ import annotations

import functools
import json

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.protocols.v2.arrays import NAMES, arrays, outcome, same
from tests.serving.protocols.v2.test_tensors import refusal
from timonel.serving.protocols.v2.requests import InferRequest, OutputForm
from timonel.serving.protocols.v2.rest_codec import decode, encode
from timonel.serving.protocols.v2.tensors import NUMPY_OF, datatype_of, to_raw
from timonel.serving.status import Code

FORMS = st.builds(OutputForm, binary=st.booleans(), base64=st.booleans())


def body(content, *raw):
    head = json.dumps(content).encode()
    return b"".join((head, *raw)), len(head)


def tensor(name="x", datatype="FP32", shape=(1,), **others):
    return {"name": name, "datatype": datatype, "shape": list(shape), **others}


def sent_back(text, header_length):
    """A response's body as that of a request with the same tensors."""
    head = json.loads(text[:header_length])
    content = {"id": head.get("id"), "inputs": head["outputs"]}
    return body(content, b"" if header_length is None else text[header_length:])


@given(st.dictionaries(NAMES, st.tuples(arrays(), FORMS), max_size=3))
def test_what_is_written_can_be_read_again_in_every_form(named):
    outputs = {name: array for name, (array, _) in named.items()}
    request = InferRequest({}, {name: form for name, (_, form) in named.items()}, "7")
    text, header_length = encode(request, "m", 3, outputs)
    read = decode(*sent_back(text, header_length))
    assert (header_length is None) == (not any(form.binary for _, form in named.values()))
    assert read.request_id == "7"
    assert read.inputs.keys() == outputs.keys()
    assert all(same(read.inputs[name], array) for name, array in outputs.items())


@pytest.mark.parametrize("datatype", sorted(NUMPY_OF))
@pytest.mark.parametrize("nested", [False, True])
def test_large_arrays_of_numbers_are_read_as_small_ones_are(datatype, nested):
    values = (np.arange(1200) % 100).astype(np.float64).reshape(2, 600)
    if datatype == "BOOL":
        values = values % 2
    data = values.astype(int).tolist()
    if datatype == "BYTES":
        data = [[str(value) for value in row] for row in data]
    if not nested:
        data = [value for row in data for value in row]
    read = decode(*body({"inputs": [tensor("x", datatype, (2, 600), data=data)]}))
    expected = values.astype(np.int64).astype("S").astype(object) if datatype == "BYTES" else values
    assert same(read.inputs["x"], expected.astype(NUMPY_OF[datatype]))


def test_everything_that_a_request_may_say():
    read = decode(
        *body(
            {
                "id": "a",
                "parameters": {
                    "signature_name": "s",
                    "timeout": 1500000,
                    "binary_data_output": True,
                    "priority": 3,
                    "my own": [1],
                },
                "inputs": [
                    tensor("b", "INT16", (2,), parameters={"binary_data_size": 4}),
                    tensor("j", "FP32", (1, 2), data=[[1, 2.5]], parameters={"mine": 1}),
                    tensor(
                        "t", "BYTES", (1,), data=["/w=="], parameters={"content_type": "base64"}
                    ),
                    tensor("e", "BYTES", (0,), data=None, parameters={"binary_data_size": 0}),
                ],
                "outputs": [
                    {"name": "z"},
                    {"name": "y", "parameters": {"binary_data": False}},
                    {"name": "q", "parameters": {"content_type": "base64"}},
                ],
            },
            b"\1\0\2\0",
        )
    )
    assert {name: array.tolist() for name, array in read.inputs.items()} == {
        "b": [1, 2],
        "j": [[1, 2.5]],
        "t": [b"\xff"],
        "e": [],
    }
    assert read.request_id == "a"
    assert read.parameters.signature_name == "s"
    assert read.parameters.timeout_s == 1.5
    assert list(read.outputs) == ["z", "y", "q"]
    assert read.form("z") == read.form("any") == OutputForm(binary=True)
    assert read.form("y") == OutputForm()
    assert read.form("q") == OutputForm(binary=True, base64=True)


def test_a_response_holds_what_the_protocol_says():
    outputs = {
        "y": np.array([[0.1, 2]], np.float32),
        "s": np.array([b"a"], object),
        "n": np.array([True]),
        "h": np.array([0.1], np.float16),
        "raw": np.array([1, 2], np.int16),
    }
    request = InferRequest({}, {"raw": OutputForm(binary=True)}, "id")
    text, length = encode(request, "m", 12, outputs)
    assert json.loads(text[:length]) == {
        "model_name": "m",
        "model_version": "12",
        "id": "id",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.1, 2]},
            {"name": "s", "datatype": "BYTES", "shape": [1], "data": ["a"]},
            {"name": "n", "datatype": "BOOL", "shape": [1], "data": [True]},
            {"name": "h", "datatype": "FP16", "shape": [1], "data": [0.099975586]},
            {
                "name": "raw",
                "datatype": "INT16",
                "shape": [2],
                "parameters": {"binary_data_size": 4},
            },
        ],
    }
    assert text[length:] == b"\1\0\2\0"


def test_without_an_id_none_is_given_back():
    text, length = encode(InferRequest({}, {}), "m", 1, {})
    assert (orjson.loads(text), length) == (
        {"model_name": "m", "model_version": "1", "outputs": []},
        None,
    )


def test_numbers_that_json_does_not_have_are_bare_words():
    outputs = {"y": np.array([np.nan, np.inf, 0.1], np.float32), "b": np.array([1], np.int8)}
    text, _ = encode(InferRequest({}, {}), "m", 1, outputs)
    assert b'"data":[NaN,Infinity,0.1]' in text
    # Raw, they are nothing special.
    raw = InferRequest({}, {"y": OutputForm(binary=True)})
    text, length = encode(raw, "m", 1, outputs)
    assert orjson.loads(text[:length])["outputs"][1]["data"] == [1]


def test_strings_that_are_no_text_are_marked():
    outputs = {"y": np.array([b"\xff", b"a"], object)}
    text, _ = encode(InferRequest({}, {}), "m", 1, outputs)
    (written,) = orjson.loads(text)["outputs"]
    assert written["data"] == ["/w==", "YQ=="]
    assert written["parameters"] == {"content_type": "base64"}


def test_an_output_without_a_type_is_refused():
    outputs = {"y": np.zeros(1, np.complex64)}
    message = refusal(encode, InferRequest({}, {}), "m", 1, outputs)
    assert message == "The protocol has no data type for output y, which is COMPLEX64."


NESTED = functools.reduce(lambda inner, _: [inner], range(400), 1)
RIGHT = tensor(data=[1])
BINARY = tensor(parameters={"binary_data_size": 4})


@pytest.mark.parametrize(
    ("content", "raw", "message"),
    [
        ([], b"", "Is not object"),
        ({"inputs": {}}, b"", "expected the inputs of the request to be a list of objects"),
        ({"inputs": [1]}, b"", "expected the inputs of the request to be a list of objects"),
        ({"outputs": "y"}, b"", "expected the outputs of the request to be a list of objects"),
        ({"outputs": [{}]}, b"", "expected the name of an output to be a string"),
        ({"outputs": [{"name": "y"}] * 2}, b"", "Output y occurs more than once"),
        ({"inputs": [RIGHT, RIGHT]}, b"", "Input x occurs more than once"),
        ({"id": 1}, b"", "expected the id of the request to be a string"),
        ({"id": "\ud800"}, b"", "surrogate"),
        ({"parameters": []}, b"", "expected the parameters of the request to be an object"),
        ({"parameters": {"signature_name": 1}}, b"", "signature_name to be a string, got 1"),
        ({"parameters": {"timeout": -1}}, b"", "timeout to be a number of microseconds, got -1"),
        ({"parameters": {"timeout": "1"}}, b"", "timeout to be a number of microseconds"),
        ({"parameters": {"binary_data_output": 1}}, b"", "binary_data_output to be true or false"),
        ({"parameters": {"sequence_id": 7}}, b"", "does not have sequences of requests"),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
            b"",
            "the parameter classification of output y is not supported",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]},
            b"",
            "binary_data to be true or false, got 'yes'",
        ),
        (
            {"inputs": [tensor(parameters={"shared_memory_region": "r"})]},
            b"",
            "the parameter shared_memory_region of input x is not supported",
        ),
        ({"inputs": [tensor()]}, b"", "expected the data of input x to be a list, got Null"),
        ({"inputs": [tensor(datatype=["FP32"], data=[1])]}, b"", "the datatype of input x to be"),
        ({"inputs": [tensor(datatype="fp32", data=[1])]}, b"", "got 'fp32'"),
        ({"inputs": [{**RIGHT, "shape": 1}]}, b"", "expected the shape of input x to be a list"),
        ({"inputs": [{**RIGHT, "shape": [1.5]}]}, b"", "must have integers of at least 0, got 1.5"),
        (
            {"inputs": [{**RIGHT, "shape": [NESTED]}]},
            b"",
            "must have integers of at least 0, got [[[[[[[...",
        ),
        (
            {"inputs": [{**BINARY, "data": [1]}]},
            b"....",
            "Input x has both data and binary_data_size",
        ),
        ({"inputs": [BINARY]}, b"...", "must be at most 3, the bytes left after the JSON, got 4"),
        ({"inputs": [BINARY]}, b".....", "expected 4 bytes of tensors after the JSON, got 5"),
        ({"inputs": [RIGHT]}, b".", "expected 0 bytes of tensors after the JSON, got 1"),
        (
            {"inputs": [tensor(shape=(2,), parameters={"binary_data_size": 4})]},
            b"....",
            "expected 8 bytes for input x, FP32 [2], got 4",
        ),
        (
            {"inputs": [tensor(parameters={"binary_data_size": -4})]},
            b"....",
            "got -4",
        ),
        (
            {"inputs": [tensor(parameters={"binary_data_size": True})]},
            b".",
            "got True",
        ),
    ],
)
def test_what_is_wrong_is_told(content, raw, message):
    assert message.lower() in refusal(decode, *body(content, raw)).lower()


@pytest.mark.parametrize("length", [-1, 3, 10**20])
def test_the_json_must_be_as_long_as_the_header_says(length):
    assert f"declares {length} of JSON" in refusal(decode, b"{}", length)


@pytest.mark.parametrize(
    "others",
    [
        {"id": list(range(2000))},
        {"parameters": {"signature_name": list(range(2000))}},
        {"inputs": [tensor("x", "FP32", range(2000), data=[1])]},
        {"inputs": [{**RIGHT, "name": list(range(2000))}]},
        {"inputs": [tensor("x", "INT8", (2000,), data=list(range(2000)))]},
        {"outputs": list(range(2000))},
    ],
)
def test_a_large_array_in_the_wrong_place_is_told_as_a_small_one_is(others):
    assert refusal(decode, *body(others)).startswith("expected")


def test_a_large_array_that_means_nothing_is_let_be():
    read = decode(*body({"inputs": [RIGHT], "parameters": {"mine": list(range(2000))}}))
    assert read.inputs["x"].tolist() == [1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["name", "datatype", "shape", "data", "parameters"])
TENSORS = st.dictionaries(
    KEYS,
    JSON
    | st.sampled_from(
        [*NUMPY_OF, [1], [0], [2, 1], {"binary_data_size": 4}, {"binary_data": True}]
    ),
)
REQUESTS = st.dictionaries(
    st.sampled_from(["inputs", "outputs", "id", "parameters"]), JSON | st.lists(TENSORS, max_size=3)
)


@given(REQUESTS, st.binary(max_size=9), st.none() | st.integers(-5, 200))
def test_any_body_is_read_or_refused(content, raw, shift):
    text, length = body(content, raw)
    found = outcome(decode, text, None if shift is None else length + shift)
    assert isinstance(found, InferRequest) or found is Code.INVALID_ARGUMENT


@given(st.binary(max_size=60), st.none() | st.integers(-5, 70))
def test_any_bytes_are_read_or_refused(text, length):
    found = outcome(decode, text, length)
    assert isinstance(found, InferRequest) or found is Code.INVALID_ARGUMENT


def test_raw_contents_are_not_copied():
    array = np.arange(1000, dtype=np.float32)
    described = tensor("x", "FP32", array.shape, parameters={"binary_data_size": array.nbytes})
    text, length = body({"inputs": [described], "id": " " * 4}, to_raw(array))
    if length % 4:  # so that the numbers are aligned
        text, length = body({"inputs": [described], "id": " " * (8 - length % 4)}, to_raw(array))
    read = decode(text, length)
    assert same(read.inputs["x"], array)
    assert not read.inputs["x"].flags.owndata
    assert datatype_of("x", read.inputs["x"]) == "FP32"
