from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.v2.arrays import arrays, outcome, same
from timonel.serving.runtimes.base import NUMPY_TYPES, Signature, TensorSpec
from timonel.serving.status import Code, StatusError
from timonel.serving.v2.tensors import (
    NUMPY_OF,
    check_types,
    checked_shape,
    datatype_named,
    datatype_of,
    from_raw,
    to_raw,
)


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
        assert "input x" in message


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
    assert message.startswith("expected the datatype of input x to be one of BOOL, ")
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
