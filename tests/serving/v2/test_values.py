from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.v2.arrays import arrays, same
from tests.serving.v2.test_tensors import refusal
from timonel.serving.rest.outline import Numbers
from timonel.serving.v2.tensors import NUMPY_OF, datatype_of
from timonel.serving.v2.values import from_numbers, from_values, to_texts

NUMERIC = sorted(set(NUMPY_OF) - {"BYTES", "BOOL"})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(str.encode)


def numbers(array):
    flat = array.astype(np.float64)
    return Numbers(flat, whole=array.dtype.kind not in "fV")


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
        ("BOOL", [1], [1.0], True),
        ("BYTES", [1], [1.0], True),
    ],
)
def test_numbers_read_beforehand_are_left_where_something_is_odd(datatype, shape, values, whole):
    assert from_numbers(datatype, shape, Numbers(np.array(values), whole)) is None


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("INT8", [2], [1, 128], "to hold INT8 values, got 128"),
        ("UINT64", [1], [-1], "to hold UINT64 values, got -1"),
        ("UINT64", [1], [2**64], "to hold UINT64 values, got 18446744073709551616"),
        ("INT32", [1], [1.0], "to hold INT32 values, got 1"),
        ("INT32", [1], [True], "to hold INT32 values, got true"),
        ("FP32", [2], [1, "a"], 'to hold FP32 values, got "a"'),
        ("FP32", [1], [None], "to hold FP32 values, got null"),
        ("FP32", [1], [False], "to hold FP32 values, got false"),
        ("BOOL", [1], [2], "to hold BOOL values, got 2"),
        ("BOOL", [1], [1.0], "to hold BOOL values, got 1"),
        ("BYTES", [1], [1], "to hold BYTES values, got 1"),
        ("BYTES", [1], ["\ud800"], "to be text"),
        ("FP32", [2], [1.0], "to be 2 values, flat, got 1"),
        ("FP32", [], [], "to be 1 values, flat, got 0"),
        ("FP32", [1], 1.0, "to be a list, got Number"),
        ("FP32", [1], None, "to be a list, got Null"),
        ("FP32", [2, 2], [1, 2, 3], "to be 4 values, flat, or nested as [2, 2], got 3"),
        ("FP32", [2, 2], [[1, 2], [3]], "to be flat, or nested as [2, 2]"),
        ("FP32", [2, 2], [[1, 2], 3, 4], "to be flat, or nested as [2, 2]"),
        ("FP32", [1, 2], [[[1], [2]]], "to hold FP32 values, got"),
        ("FP32", [1], [[1]], "to hold FP32 values, got"),
    ],
)
def test_what_does_not_fit_is_refused(datatype, shape, data, message):
    found = refusal(from_values, "x", datatype, shape, data)
    assert found.startswith(f"expected the data of input x {message}")


def test_booleans_may_be_bits_and_floats_may_be_whole():
    assert from_values("x", "BOOL", [3], [0, 1, True]).tolist() == [False, True, True]
    assert from_values("x", "FP16", [2], [1, 0.1]).tolist() == [1, np.float16(0.1)]
    assert from_values("x", "FP16", [1], [1e9]).tolist() == [math.inf]
    assert from_values("x", "UINT64", [1], [2**64 - 1]).tolist() == [2**64 - 1]


def test_damaged_base64_is_refused():
    message = refusal(from_values, "x", "BYTES", [1], ["?"], in_base64=True)
    assert message == "expected the data of input x to be base64"
