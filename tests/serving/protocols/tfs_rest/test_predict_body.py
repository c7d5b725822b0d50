from __future__ import annotations

import base64
import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.codec.number_arrays import to_array_fast
from timonel.serving.codec.tensors import to_array
from timonel.serving.protocols.tfs_rest.predict import (
    JsonBody,
    PlainBody,
    decode_rows,
    media_of,
    parse_request,
    read_request,
)
from timonel.serving.signature import NUMPY_TYPES, TensorSpec
from timonel.serving.status import Code, StatusError


def specs(**dtypes):
    return {name: TensorSpec(f"{name}:0", f"DT_{dtype}") for name, dtype in dtypes.items()}


X = specs(x="FLOAT")
AB = specs(a="FLOAT", b="INT32")


def read(content, inputs, missing=None):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return parse_request(body).arrays(inputs, missing or {})


@pytest.mark.parametrize(
    ("content", "inputs", "expected"),
    [
        ({"instances": [1, 2.5]}, X, {"x": np.array([1, 2.5], np.float32)}),
        ({"instances": [[1, 2], [3, 4]]}, X, {"x": np.array([[1, 2], [3, 4]], np.float32)}),
        ({"instances": [[], []]}, X, {"x": np.zeros((2, 0), np.float32)}),
        (
            {"instances": [{"a": 1, "b": 2}, {"b": 4, "a": 3}]},
            AB,
            {"a": np.array([1, 3], np.float32), "b": np.array([2, 4], np.int32)},
        ),
        ({"instances": [{"x": [1]}]}, X, {"x": np.array([[1]], np.float32)}),
        ({"inputs": 3}, X, {"x": np.array(3, np.float32)}),
        ({"inputs": [[1, 2]]}, X, {"x": np.array([[1, 2]], np.float32)}),
        ({"inputs": {"x": [1], "y": "ignored"}}, X, {"x": np.array([1], np.float32)}),
        (
            {"inputs": {"a": [1, 2, 3], "b": 7}},
            AB,
            {"a": np.array([1, 2, 3], np.float32), "b": np.array(7, np.int32)},
        ),
        ({"inputs": [1e300, -1e300]}, X, {"x": np.array([np.inf, -np.inf], np.float32)}),
        ({"inputs": [1e300]}, specs(x="DOUBLE"), {"x": np.array([1e300])}),
        (
            b'{"inputs": [NaN, Infinity, -Infinity]}',
            X,
            {"x": np.array([np.nan, np.inf, -np.inf], np.float32)},
        ),
        ({"inputs": [300, -1]}, specs(x="UINT8"), {"x": np.array([44, 255], np.uint8)}),
        ({"inputs": [2**63 - 1]}, specs(x="INT64"), {"x": np.array([2**63 - 1])}),
        ({"inputs": [2**64 - 1]}, specs(x="UINT64"), {"x": np.array([2**64 - 1], np.uint64)}),
        ({"inputs": [True, False]}, specs(x="BOOL"), {"x": np.array([True, False])}),
        ({"inputs": True}, specs(x="BOOL"), {"x": np.array(True)}),
        (b'{"signature_name": "false", "inputs": [1]}', X, {"x": np.array([1], np.float32)}),
    ],
)
def test_requests(content, inputs, expected):
    found = read(content, inputs)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_strings_and_bytes_may_be_mixed():
    b64 = {"b64": base64.b64encode(b"\xff\x00\x00").decode()}
    found = read({"instances": ["é", b64, "a\0"]}, specs(x="STRING"))["x"]
    assert found.dtype == object
    assert found.tolist() == ["é".encode(), b"\xff\x00\x00", b"a\0"]
    assert read({"inputs": b64}, specs(x="STRING"))["x"].item() == b"\xff\x00\x00"
    assert read({"instances": [{"x": b64}]}, specs(x="STRING"))["x"].tolist() == [b"\xff\x00\x00"]
    for text in ("/w", "/w==", "\n/ w\t=\r=\f\v", " /w\n"):
        assert read({"instances": [{"b64": text}]}, specs(x="STRING"))["x"].tolist() == [b"\xff"]


ELEMENT_0 = "Failed to process element: 0 of 'instances' list. Error: INVALID_ARGUMENT: "
ELEMENT_1 = "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
BOTH = '{"inputs": [1], "instances": [1]}'


@pytest.mark.parametrize(
    ("content", "inputs", "message"),
    [
        ({}, X, "Missing 'inputs' or 'instances' key"),
        (
            {"signature_name": 1},
            X,
            (
                'JSON Value: {\n    "signature_name": 1\n} not formatted correctly. '
                "'signature_name' key must be a string value."
            ),
        ),
        ({"inputs": 1}, {}, "Failed to get input map for signature: DEFAULT"),
        ({"inputs": 1, "signature_name": "s"}, {}, "Failed to get input map for signature: s"),
        (
            BOTH.encode(),
            X,
            (
                f"JSON Value: {json.dumps(json.loads(BOTH), indent=4)} Not formatted correctly "
                "expecting only one of 'inputs' or 'instances' keys to exist "
            ),
        ),
        (
            {"instances": 1},
            X,
            "JSON Value: {\n    \"instances\": 1\n} Expecting 'instances' to be an list/array",
        ),
        (
            {"instances": []},
            X,
            "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array",
        ),
        (
            {"instances": [{"a": 1}]},
            AB,
            (
                "Failed to process element: 0 of 'instances' list. JSON object: {\n    \"a\": 1\n} "
                "keys must be equal to: a,b"
            ),
        ),
        (
            {"instances": [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}]},
            AB,
            (
                "Failed to process element: 1 key: c of 'instances' list. Error: INVALID_ARGUMENT: "
                "JSON object: does not have named input: c"
            ),
        ),
        (
            {"instances": [1, 2]},
            AB,
            (
                "instances is a plain list, but expecting list of objects as multiple input "
                "tensors required as per tensorinfo_map"
            ),
        ),
        ({"instances": [{"x": 1}, 2]}, X, "Expecting object but got list at item 1 of input list"),
        (
            {"instances": [1, {"x": 1}]},
            X,
            "Expecting value/list but got object at item 1 of input list",
        ),
        ({"instances": [[1, 2], [1]]}, X, f"{ELEMENT_1}Expecting tensor size: 2 but got: 1"),
        (
            {"instances": [[1, 2], [[1], [2]]]},
            X,
            f"{ELEMENT_1}Expecting shape [2] but got: [2,1]",
        ),
        (
            {"instances": [{"a": 1, "b": 1}, {"a": [1, 2], "b": 1}]},
            AB,
            (
                "Failed to process element: 1 key: a of 'instances' list. Error: INVALID_ARGUMENT: "
                "Expecting tensor size: 1 but got: 2"
            ),
        ),
        (
            {"inputs": 1},
            AB,
            (
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            ),
        ),
        ({"inputs": {"a": 1}}, AB, "Missing named input: b in 'inputs' object."),
        (
            {"inputs": [[1, 2], [3]]},
            X,
            "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
        ),
        (
            {"inputs": [1, [2]]},
            X,
            "Encountered list at unexpected level: 1 expected < 1",
        ),
        (
            {"inputs": [[1], 2]},
            X,
            (
                "JSON Value: 2 Type: Number found at incorrect level: 2 in the JSON DOM. "
                "Expected at level: 2"
            ),
        ),
        ({"inputs": ["a"]}, X, 'JSON Value: "a" Type: String is not of expected type: float'),
        ({"inputs": [None]}, X, "JSON Value: null Type: Null is not of expected type: float"),
        ({"inputs": [True]}, X, "JSON Value: true Type: True is not of expected type: float"),
        (
            {"inputs": [1.5, False]},
            X,
            "JSON Value: false Type: False is not of expected type: float",
        ),
        (
            {"inputs": [{"b64": "eA=="}]},
            X,
            'JSON Value: {\n    "b64": "eA=="\n} Type: Object is not of expected type: float',
        ),
        (
            {"inputs": [1.0]},
            specs(x="INT32"),
            "JSON Value: 1.0 Type: Number is not of expected type: int32",
        ),
        (
            {"inputs": [2**31]},
            specs(x="INT8"),
            "JSON Value: 2147483648 Type: Number is not of expected type: int8",
        ),
        (
            {"inputs": [-1]},
            specs(x="UINT64"),
            "JSON Value: -1 Type: Number is not of expected type: uint64",
        ),
        (
            {"inputs": [1]},
            specs(x="BOOL"),
            "JSON Value: 1 Type: Number is not of expected type: bool",
        ),
        (
            {"inputs": [1]},
            specs(x="STRING"),
            "JSON Value: 1 Type: Number is not of expected type: string",
        ),
        ({"inputs": [{"b64": "!"}]}, specs(x="STRING"), "Unable to base64 decode"),
        ({"inputs": [{"b64": "/w\u00a0"}]}, specs(x="STRING"), "Unable to base64 decode"),
        (
            {"inputs": [{"b64": 1}]},
            specs(x="STRING"),
            'JSON Value: {\n    "b64": 1\n} not formatted correctly for base64 data',
        ),
        (
            {"instances": ["a"]},
            X,
            f'{ELEMENT_0}JSON Value: "a" Type: String is not of expected type: float',
        ),
        (
            b'{"inputs": ' + b"[" * 70 + b"]" * 70 + b"}",
            X,
            "Expecting rank 32 at most, got 70",
        ),
    ],
)
def test_refusals_are_worded_as_in_tensorflow_serving(content, inputs, message):
    with pytest.raises(StatusError) as caught:
        read(content, inputs)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)


@pytest.mark.parametrize("dtype", ["HALF", "BFLOAT16", "UINT16", "COMPLEX64"])
def test_other_types_are_unimplemented(dtype):
    with pytest.raises(StatusError) as caught:
        read({"inputs": [1]}, specs(x=dtype))
    assert caught.value.code is Code.UNIMPLEMENTED
    assert caught.value.message == f"Conversion of JSON Value: 1 to type: {dtype.lower()}"


NUMBERS = ["FLOAT", "DOUBLE", "INT8", "UINT8", "INT16", "INT32", "INT64", "UINT32", "UINT64"]
scalars = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-3, 300),
    st.floats(),
    st.sampled_from([2**31, -(2**31) - 1, 2**53 + 1, 1e39, 16777217]),
)
odd = scalars | st.none() | st.text(max_size=2) | st.just({"b64": "eA=="})


def nested(leaves):
    """Lists of one shape mostly, ragged ones sometimes."""
    regular = st.integers(0, 3).flatmap(
        lambda width: st.lists(st.lists(leaves, min_size=width, max_size=width), max_size=4)
    )
    ragged = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=8)
    return st.one_of(st.lists(leaves, max_size=5), regular, ragged)


@given(st.sampled_from([f"DT_{name}" for name in NUMBERS]), nested(odd))
def test_the_fast_way_gives_what_the_slow_one_gives_or_gives_up(dtype, value):
    fast = to_array_fast(value, dtype)
    if fast is not None:
        slow = to_array(value, dtype)
        assert fast.dtype == slow.dtype == NUMPY_TYPES[dtype]
        assert fast.shape == slow.shape
        np.testing.assert_array_equal(fast, slow)


@given(nested(st.floats(width=32)), nested(st.integers(-9, 9)))
def test_the_fast_way_is_taken_for_plain_numbers(floats, integers):
    for value, dtype in [(floats, "DT_FLOAT"), (integers, "DT_INT32")]:
        try:
            slow = to_array(value, dtype)
        except StatusError:
            continue
        if slow.ndim:
            assert to_array_fast(value, dtype) is not None


def outcome(work):
    """Return what came of it: arrays, or the words of the refusal."""
    try:
        return {name: (array.dtype, array.tolist()) for name, array in work().items()}
    except StatusError as error:
        return str(error)


@given(st.lists(nested(odd), min_size=1, max_size=4), st.sampled_from(["FLOAT", "INT32"]))
def test_rows_are_read_as_element_by_element(rows, dtype):
    inputs = specs(x=dtype)
    body = json.dumps({"instances": rows}).encode()
    parsed = json.loads(body)["instances"]
    expected = outcome(lambda: decode_rows(parsed, inputs))
    assert repr(outcome(lambda: read(body, inputs))) == repr(expected)


@given(
    st.lists(
        st.fixed_dictionaries({"a": scalars, "b": st.integers(-9, 9)}, optional={"c": scalars}),
        min_size=1,
        max_size=4,
    )
)
def test_named_rows_are_read_as_element_by_element(rows):
    body = json.dumps({"instances": rows}).encode()
    parsed = json.loads(body)["instances"]
    found = outcome(lambda: read(body, AB))
    expected = outcome(lambda: decode_rows(parsed, AB))
    if isinstance(expected, dict):
        assert repr([found[name] for name in AB]) == repr([expected[name] for name in AB])
    else:
        assert found == expected


JPEG = "image/jpeg"
TEXT = "text/plain"


def spec(dtype, *shape):
    return TensorSpec("t:0", dtype, shape)


IMAGE = {"image_bytes": spec("DT_STRING", -1)}
ROW = {
    "age": spec("DT_FLOAT", -1),
    "name": spec("DT_STRING", -1),
    "seats": spec("DT_INT32", -1, 1),
    "paid": spec("DT_BOOL", -1),
}


def decoded(body, media, specs):
    request = read_request(body, media)
    arrays = request.arrays(specs)
    return {name: array.tolist() for name, array in arrays.items()}, request.by_row


def refusal(call, *arguments, **options):
    with pytest.raises(StatusError) as caught:
        call(*arguments, **options)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("content_type", "media"),
    [
        ("image/jpeg", JPEG),
        ("Image/PNG ; q=1", "image/png"),
        ("application/octet-stream", "application/octet-stream"),
        ("text/plain", TEXT),
        ("text/plain;charset=UTF-8", TEXT),
        ('text/plain; x=1; charset="us-ascii"', TEXT),
        ("text/csv", None),
        ("application/json", None),
        ("application/x-www-form-urlencoded", None),
        ("json", None),
        ("", None),
        ("multipart/form-data; boundary=x", None),
    ],
)
def test_a_content_type_says_what_a_body_is(content_type, media):
    assert media_of(content_type) == media


@pytest.mark.parametrize(
    "image", [b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF..WEBP"]
)
def test_an_image_without_its_content_type_gets_the_cure(image):
    with pytest.raises(
        StatusError, match=r"JSON Parse error: .*'Content-Type: image/jpeg'"
    ) as error:
        read_request(image + bytes(range(256)), None)
    assert error.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(StatusError) as other:
        read_request(b"\x00" + image, None)
    assert "image" not in other.value.message


@pytest.mark.parametrize("charset", ["latin-1", '"utf-16"', "no-such", "a\0b", "''", ""])
def test_texts_must_be_utf_8(charset):
    assert "charset" in refusal(media_of, f"text/plain; charset={charset}")


@given(st.text(max_size=60))
def test_no_content_type_fails_otherwise(content_type):
    with contextlib.suppress(StatusError):
        media_of(content_type)


def test_an_image_or_a_text_is_the_one_string_that_the_model_takes():
    assert decoded(b"\xff\xd8\0", JPEG, IMAGE) == ({"image_bytes": [b"\xff\xd8\0"]}, True)
    assert decoded(b" a text\n", TEXT, IMAGE) == ({"image_bytes": [b" a text\n"]}, True)
    assert decoded(b"", TEXT, {"t": spec("DT_STRING", -1, 1)}) == ({"t": [[b""]]}, True)
    assert decoded(b"x", JPEG, {"t": spec("DT_STRING")}) == ({"t": b"x"}, False)
    assert decoded(b"x", JPEG, {"t": TensorSpec("t", "DT_STRING")}) == ({"t": [b"x"]}, True)


@pytest.mark.parametrize(
    "specs",
    [{"x": spec("DT_FLOAT", -1, 4)}, ROW, {}, {"x": spec("DT_STRING", -1, 2, 2)}],
    ids=["floats", "several", "none", "too deep"],
)
def test_an_image_fits_nothing_else(specs):
    words = refusal(decoded, b"\xff", JPEG, specs)
    assert words.startswith("A body of image/")
    assert all(name in words for name in specs)


@pytest.mark.parametrize("name", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("key", ["instances", "inputs"])
def test_json_is_json_where_a_client_did_not_say_so(name, key):
    request = read_request(b"\n" + json.dumps({key: ["a"]}).encode(), media_of(name))
    assert isinstance(request, JsonBody)
    assert request.by_row == (key == "instances")


@pytest.mark.parametrize("body", [b"{", b'{"text": 1}', b"{\xff", b"{}", b"hello {"])
def test_a_text_with_a_brace_is_a_text(body):
    assert isinstance(read_request(body, TEXT), PlainBody)


def test_an_image_is_never_json():
    assert isinstance(read_request(b'{"instances": []}', JPEG), PlainBody)


def test_without_a_content_type_of_its_own_a_body_is_json():
    assert isinstance(read_request(b'{"instances": []}', None), JsonBody)
    refusal(read_request, b"\xff\xd8", None)


@pytest.mark.parametrize(
    ("content", "a", "w"),
    [
        ({"instances": [{"a": None, "w": "x"}, {"a": 2, "w": None}]}, [None, 2], [b"x", b""]),
        ({"instances": [{"a": [None], "w": [None]}]}, [[None]], [[b""]]),
        ({"inputs": {"a": [1, None], "w": [None, "x"]}}, [1, None], [b"", b"x"]),
        ({"inputs": {"a": None, "w": None}}, None, b""),
        ({"instances": [{"a": None, "w": "x" * 2000}]}, [None], [b"x" * 2000]),
    ],
)
def test_null_is_a_missing_cell_where_the_model_takes_one(content, a, w):
    inputs, missing = specs(a="FLOAT", w="STRING"), {"a": float("nan"), "w": ""}
    found = read(content, inputs, missing)
    np.testing.assert_array_equal(found["a"], np.array(a, np.float32))
    assert found["w"].tolist() == w
    with pytest.raises(StatusError, match="Type: Null is not of expected type"):
        read(content, inputs)


def test_null_in_the_only_column_of_a_model():
    missing = {"x": float("nan")}
    for content in ({"instances": [1, None]}, {"inputs": [1, None]}):
        np.testing.assert_array_equal(read(content, X, missing)["x"], np.array([1, np.nan], "f4"))
        with pytest.raises(StatusError, match="Type: Null is not of expected type: float"):
            read(content, X)
