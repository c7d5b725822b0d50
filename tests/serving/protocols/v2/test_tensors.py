from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.protocols.v2.arrays import arrays, outcome, same
from timonel.serving.codec.number_arrays import NumberArray, Outline
from timonel.serving.protocols.v2.tensors import (
    NUMPY_OF,
    check_types,
    checked_shape,
    datatype_named,
    datatype_of,
    from_json,
    from_raw,
    to_raw,
    to_texts,
)
from timonel.serving.signature import NUMPY_TYPES, Signature, TensorSpec
from timonel.serving.status import Code, StatusError

NUMERIC = sorted(set(NUMPY_OF) - {"BYTES", "BOOL"})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(str.encode)


def refusal(function, *args, **kwargs):
    with pytest.raises(StatusError) as caught:
        function(*args, **kwargs)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value.message


@given(arrays(), st.integers(0, 3))
def test_any_array_comes_back_from_its_raw_contents(array, offset):
    content = memoryview(b"." * offset + to_raw(array))[offset:]
    datatype = datatype_of("y", array)
    back = from_raw("x", datatype, array.shape, content)
    assert same(back, array)
    assert back.flags.aligned


def test_strings_have_their_lengths_in_front():
    array = np.array([[b"a"], [b"\xff\0b"], [b""]], object)
    assert to_raw(array) == b"\1\0\0\0a\3\0\0\0\xff\0b\0\0\0\0"
    assert to_raw(array) == b"".join(struct.pack("<I", len(t)) + t for (t,) in array.tolist())


def test_every_type_but_the_complex_ones_has_a_name():
    without = {name for name in NUMPY_TYPES if datatype_named(name) not in NUMPY_OF}
    assert without == {"DT_COMPLEX64", "DT_COMPLEX128"}
    assert "COMPLEX64" in refusal(datatype_of, "y", np.zeros(1, np.complex64))
    assert datatype_named("DT_VARIANT") == "VARIANT"


@given(arrays(), st.integers(-20, 20).filter(bool))
def test_contents_of_another_size_are_refused(array, more):
    content = to_raw(array)
    others = content[:more] if more < 0 else content + b"\0" * more
    if len(others) != len(content):
        message = refusal(from_raw, "x", datatype_of("", array), array.shape, memoryview(others))
        assert "nput x" in message


@given(st.binary(max_size=40), st.integers(0, 5))
def test_any_bytes_are_strings_or_refused(content, count):
    found = outcome(from_raw, "x", "BYTES", [count], memoryview(content))
    assert found is Code.INVALID_ARGUMENT or to_raw(found) == content


def test_a_huge_count_of_strings_costs_nothing():
    assert "at most 500000 strings" in refusal(from_raw, "x", "BYTES", [10**10], memoryview(b""))


def test_bytes_other_than_zero_are_true():
    array = from_raw("x", "BOOL", [3], memoryview(b"\0\1\xff"))
    assert array.view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "shape", [[-1], [1.0], [True], ["1"], [None], [[1]], [1] * 65, [0, 2**62, 2**62], [10**400]]
)
def test_shapes_that_are_none_are_refused(shape):
    assert "input x" in refusal(checked_shape, "x", shape)


def test_an_unknown_type_is_refused():
    message = refusal(from_raw, "x", "FLOAT", [1], memoryview(b"    "))
    assert message.startswith("expected the datatype of input x to be one of FP32, ")
    assert message.endswith("got 'FLOAT'")


def test_inputs_are_held_against_the_signature():
    specs = {
        "x": TensorSpec("x:0", "DT_FLOAT", (-1, 2)),
        "any": TensorSpec("any:0", "DT_STRING", None),
        "odd": TensorSpec("odd:0", "DT_VARIANT", None),
    }
    signature = Signature("s", specs, {})
    right = np.zeros((3, 2), np.float32)
    check_types(signature, {"x": right, "any": np.empty((1, 2, 3), object), "other": right})
    assert refusal(check_types, signature, {"x": np.zeros((3, 2), np.int64)}) == (
        "expected input x to be FP32, got INT64"
    )
    assert "VARIANT" in refusal(check_types, signature, {"odd": right})


def from_values(name, datatype, shape, data, **options):
    """Decode values that are no large array of numbers."""
    text = b"true" if "True" in repr(data) or "False" in repr(data) else b""
    return from_json(name, datatype, shape, data, Outline(text, {}, text), **options)


def from_numbers(datatype, shape, numbers):
    """Decode numbers that were read beforehand; None if that is refused."""
    try:
        return from_json("x", datatype, shape, numbers, Outline(b"", {}, b"", [numbers]))
    except StatusError:
        return None


def numbers(array):
    flat = array.astype(np.float64)
    return NumberArray(flat, whole=array.dtype.kind not in "fV")


@given(arrays(texts=TEXTS))
def test_any_array_comes_back_from_its_elements_flat_or_nested(array):
    datatype = datatype_of("x", array)
    plain = array.astype(np.float64) if datatype == "BF16" else array
    nested = plain.tolist()
    flat = plain.reshape(-1).tolist()
    if datatype == "BYTES":
        flat, _ = to_texts(array, in_base64=False)
        nested = np.array(flat, object).reshape(array.shape).tolist()
    assert same(from_values("x", datatype, array.shape, flat), array)
    if array.ndim:
        assert same(from_values("x", datatype, array.shape, nested), array)


@given(arrays(datatype="BYTES"))
def test_strings_that_are_no_text_travel_in_base64(array):
    texts, in_base64 = to_texts(array, in_base64=False)
    assert same(from_values("x", "BYTES", array.shape, texts, in_base64=in_base64), array)
    texts, in_base64 = to_texts(array, in_base64=True)
    assert in_base64
    assert same(from_values("x", "BYTES", array.shape, texts, in_base64=True), array)


@given(st.sampled_from(NUMERIC).flatmap(lambda datatype: arrays(datatype=datatype)))
def test_numbers_read_beforehand_give_the_same_or_nothing(array):
    if not array.size or not np.isfinite(array.astype(np.float64)).all():
        return
    datatype = datatype_of("x", array)
    for shape in {array.shape, (array.size,)}:
        if not shape:
            continue
        found = from_numbers(datatype, array.shape, numbers(array.reshape(shape)))
        if found is None:
            assert abs(array.astype(np.float64)).max() >= 2**53
        else:
            assert same(found, array)


@pytest.mark.parametrize(
    ("datatype", "shape", "values", "whole"),
    [
        ("INT8", [1], [128.0], True),
        ("UINT8", [1], [-1.0], True),
        ("INT64", [1], [2.0**53], True),
        ("INT32", [1], [1.0], False),
        ("INT32", [2], [1.0], True),
        ("BOOL", [1], [2.0], True),
        ("BYTES", [1], [1.0], True),
    ],
)
def test_numbers_read_beforehand_are_left_where_something_is_odd(datatype, shape, values, whole):
    assert from_numbers(datatype, shape, NumberArray(np.array(values), whole)) is None


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("INT8", [2], [1, 128], "to hold INT8 values, got 128"),
        ("FP16", [2], [1, 70000], "to hold FP16 values, got 70000.0"),
        ("BF16", [1], [-3.4e38], "to hold BF16 values, got -3.4e+38"),
        ("FP32", [2], [float("nan"), 1e39], "to hold FP32 values, got 1e+39"),
        ("UINT64", [1], [-1], "to hold UINT64 values: JSON Value: -1"),
        ("UINT64", [1], [2**64], "to hold UINT64 values: JSON Value: 18446744073709551616"),
        ("INT32", [1], [1.0], "to hold INT32 values: JSON Value: 1"),
        ("INT32", [1], [True], "to hold INT32 values: JSON Value: true"),
        ("FP32", [2], [1, "a"], 'to hold FP32 values: JSON Value: "a"'),
        ("FP32", [1], [None], "to hold FP32 values: JSON Value: null"),
        ("FP32", [1], [False], "to hold FP32 values: JSON Value: false"),
        ("BOOL", [1], [2], "to hold BOOL values, got 2"),
        ("BOOL", [1], [1.0], "to hold BOOL values: JSON Value: 1"),
        ("BOOL", [2], [True, 1], "to hold BOOL values: JSON Value: 1"),
        ("BYTES", [1], [1], "to hold BYTES values: JSON Value: 1"),
        ("FP32", [2], [1.0], "to be 2 values, flat, got [1]"),
        ("FP32", [], [], "to be 1 values, flat, got [0]"),
        ("FP32", [1], 1.0, "to be a list, got Number"),
        ("FP32", [1], None, "to be a list, got Null"),
        ("FP32", [2, 2], [1, 2, 3], "to be 4 values, flat, or nested as [2, 2], got [3]"),
        (
            "FP32",
            [2, 2],
            [[1, 2], [3]],
            "to hold FP32 values: Encountered list",
        ),
        ("FP32", [2, 2], [[1, 2], 3], "to hold FP32 values: JSON Value: 3"),
        ("FP32", [1, 2], [[[1], [2]]], "to be 2 values, flat, or nested as [1, 2], got [1, 2, 1]"),
        ("FP32", [1], [[1]], "to be 1 values, flat, got [1, 1]"),
    ],
)
def test_what_does_not_fit_is_refused(datatype, shape, data, message):
    found = refusal(from_values, "x", datatype, shape, data)
    assert found.startswith(f"expected the data of input x {message}")


def test_booleans_may_be_bits_and_floats_may_be_whole():
    assert from_values("x", "BOOL", [3], [0, 1, 1]).tolist() == [False, True, True]
    assert from_values("x", "FP16", [2], [1, 0.1]).tolist() == [1, np.float16(0.1)]
    assert from_values("x", "FP16", [3], [65519, math.inf, 0]).tolist() == [65504, math.inf, 0]
    assert from_values("x", "UINT64", [1], [2**64 - 1]).tolist() == [2**64 - 1]


def test_base64_may_have_white_space():
    array = from_values("x", "BYTES", [2], ["AP\n8=\n", " eA"], in_base64=True)
    assert array.tolist() == [b"\x00\xff", b"x"]


def test_damaged_base64_is_refused():
    message = refusal(from_values, "x", "BYTES", [1], ["?"], in_base64=True)
    assert message == "expected the data of input x to be base64"
