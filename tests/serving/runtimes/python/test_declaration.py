"""What code declares, and arrays held against it."""

from __future__ import annotations

import numpy as np
import pytest

from timonel.serving.runtimes.python.declaration import check_inputs, declared_specs, fitted
from timonel.serving.signature import TensorSpec
from timonel.serving.status import Code, StatusError


def specs(**declaration):
    return declared_specs(declaration, where="inputs")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "DT_FLOAT"),
        (np.float64, "DT_DOUBLE"),
        (np.dtype(np.uint8), "DT_UINT8"),
        ("bfloat16", "DT_BFLOAT16"),
        (bool, "DT_BOOL"),
        (int, "DT_INT64"),
        ("string", "DT_STRING"),
        (str, "DT_STRING"),
        (bytes, "DT_STRING"),
        (object, "DT_STRING"),
    ],
)
def test_types_are_numpys_and_string(dtype, name):
    assert specs(x=(dtype, [None])) == {"x": TensorSpec("x", name, (-1,))}


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [([None, 4], (-1, 4)), ((), ()), (None, None), ((-1, None), (-1, -1))],
)
def test_shapes(shape, sizes):
    assert specs(x=("int32", shape))["x"].shape == sizes


def test_the_order_is_kept():
    assert list(specs(b=("int32", []), a=("int32", []))) == ["b", "a"]


@pytest.mark.parametrize(
    "declaration",
    [
        None,
        {},
        ["x"],
        {"x": "float32"},
        {"x": ("float33", [None])},
        {"x": ("datetime64[s]", [None])},
        {"x": ("float32", 4)},
        {"x": ("float32", ["a"])},
        {"x": ("float32", [-2])},
        {"x": ("float32", "ab")},
        {"x": ([1], [None])},
    ],
)
def test_what_is_no_declaration_is_told(declaration):
    with pytest.raises(StatusError) as caught:
        declared_specs(declaration, where="inputs of model.py")
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert "inputs of model.py" in caught.value.message


def test_a_clients_arrays_are_held_against_types_and_shapes():
    declared = specs(x=("float32", [None, 2]), y=("string", None))
    fine = {"x": np.zeros((3, 2), np.float32), "y": np.array(b"a", object)}
    check_inputs(fine, declared)
    for wrong, words in (
        (np.zeros((3, 2)), "expected x to be float32 [?, 2], got float64 [3, 2]"),
        (np.zeros(2, np.float32), "expected x to be float32 [?, 2], got float32 [2]"),
        (np.zeros((1, 3), np.float32), "expected x to be float32 [?, 2], got float32 [1, 3]"),
        (np.array([[b"a"]], object), "expected x to be float32 [?, 2], got string [1, 1]"),
    ):
        with pytest.raises(StatusError) as caught:
            check_inputs({**fine, "x": wrong}, declared)
        assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, words)


@pytest.mark.parametrize(
    ("given", "declared", "expected"),
    [
        ([1.5], ("float32", [None]), np.array([1.5], np.float32)),
        (np.array([1, 2]), ("float64", [None]), np.array([1.0, 2.0])),
        (np.array([300], np.int64), ("int32", [None]), np.array([300], np.int32)),
        (2.5, ("float32", []), np.array(2.5, np.float32)),
        (["ä", b"\xff\0"], ("string", [None]), np.array(["ä".encode(), b"\xff\0"], object)),
        ("text", ("string", []), np.array(b"text", object)),
        (np.array([["a"], ["b"]]), ("string", [None, 1]), np.array([[b"a"], [b"b"]], object)),
        ([], ("string", [None]), np.array([], object)),
    ],
)
def test_what_code_gives_is_made_what_it_declares(given, declared, expected):
    array = fitted({"y": given}, specs(y=declared), giver="predict")["y"]
    assert array.dtype == expected.dtype
    assert array.shape == expected.shape
    assert array.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1.0], "expected predict to return a dict of arrays, got list"),
        ({}, "predict returned nothing instead of y"),
        ({"y": 1, "z": 2}, "predict returned y, z instead of y"),
        ({"y": [1.5]}, "expected y of predict to be int32 [?], got float64 [1]"),
        ({"y": [[1]]}, "expected y of predict to be int32 [?], got int32 [1, 1]"),
        ({"y": ["a"]}, "expected y of predict to be int32 [?], got string [1]"),
    ],
)
def test_what_is_not_as_declared_is_the_codes_own_failure(given, words):
    with pytest.raises(StatusError) as caught:
        fitted(given, specs(y=("int32", [None])), giver="predict")
    assert (caught.value.code, caught.value.message) == (Code.INTERNAL, words)


@pytest.mark.parametrize(
    ("given", "dtype", "unfit"),
    [
        (np.array([1, 2**32 + 1]), "int32", "4294967297"),
        (np.array([-129, 300]), "int8", "-129"),
        (np.array(2**64 - 1, np.uint64), "int64", "18446744073709551615"),
        ([1.0, 1e300], "float32", "1e+300"),
        ([65520], "float16", "65520"),
        ([3.4e38], "bfloat16", "3.4e+38"),
        ([1 + 1e300j], "complex64", "(1+1e+300j)"),
    ],
)
def test_numbers_beyond_the_declared_range_are_the_codes_own_failure(given, dtype, unfit):
    with pytest.raises(StatusError) as caught:
        fitted({"y": given}, specs(y=(dtype, None)), giver="predict")
    message = f"expected y of predict to be {dtype} [?], got {unfit}"
    assert (caught.value.code, caught.value.message) == (Code.INTERNAL, message)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([-(2**31), 2**31 - 1]), "int32"),
        (np.array([2**63 - 1], np.uint64), "int64"),
        (np.array([], np.int64), "int8"),
        ([float("inf"), float("nan"), 1e-300, 3.4e38], "float32"),
        (np.array([65519]), "float16"),
    ],
)
def test_numbers_at_the_ends_of_the_declared_range_are_kept(given, dtype):
    array = fitted({"y": given}, specs(y=(dtype, None)), giver="predict")["y"]
    np.testing.assert_array_equal(array, np.asarray(given).astype(dtype))


def test_ragged_lists_and_strange_texts_are_told():
    for declared, given in (("float32", [[1], [1, 2]]), ("string", [1]), ("string", np.zeros(1))):
        with pytest.raises(StatusError) as caught:
            fitted({"y": given}, specs(y=(declared, None)), giver="predict")
        assert caught.value.code is Code.INTERNAL
        assert "\n" not in caught.value.message
