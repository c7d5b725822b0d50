from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from timonel.serving.inference.signature_check import MAX_RANK, check_shapes, drop_column
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError


def signature(*shapes):
    specs = {f"x{i}": TensorSpec(f"x{i}:0", "DT_FLOAT", shape) for i, shape in enumerate(shapes)}
    return Signature("s", specs, {})


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        ((-1, 8, 8, 1), (3, 8, 8, 1)),
        ((-1, 8, 8, 1), (0, 8, 8, 1)),
        ((-1, -1), (0, 0)),
        ((), ()),
        (None, ()),
        (None, (1,) * MAX_RANK),
        ((1,) * 12, (1,) * 12),
    ],
)
def test_shapes_that_fit(declared, given):
    inputs = {"x0": zeros(*given)}
    assert check_shapes(signature(declared), inputs) is inputs


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float64, "DT_DOUBLE"), (np.int32, "DT_INT32"), (object, "DT_STRING")]
)
def test_other_types_are_refused(dtype, name):
    with pytest.raises(StatusError, match=f"x0 has the wrong type: expected DT_FLOAT, got {name}"):
        check_shapes(signature((-1,)), {"x0": np.zeros(3, dtype)})


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        ((-1, 8, 8, 1), (1,)),
        ((-1, 8, 8, 1), (0,)),
        ((-1, 8, 8, 1), (1, 0)),
        ((-1, 8, 8, 1), (1, 8, 8)),
        ((-1, 8, 8, 1), (1, 8, 8, 2)),
        ((-1, 8, 8, 1), (1, 8, 8, 1, 1)),
        ((-1,), ()),
        ((), (1,)),
        ((-1, 1), (2, 2)),
        ((-1, 1), (2, 1, 1)),
        ((-1, 2), (2,)),
    ],
)
def test_other_shapes_are_refused(declared, given):
    with pytest.raises(StatusError) as caught:
        check_shapes(signature(declared), {"x0": zeros(*given)})
    assert caught.value.code is Code.INVALID_ARGUMENT
    expected, found = ", ".join(map(str, declared)), ", ".join(map(str, given))
    assert caught.value.message == (
        f"Input x0 has the wrong shape: expected shape [{expected}], got [{found}]"
    )


def test_an_undeclared_rank_is_bounded():
    with pytest.raises(StatusError, match="expected rank 8 at most"):
        check_shapes(signature(None), {"x0": zeros(*(1,) * (MAX_RANK + 1))})


@pytest.mark.parametrize("shape", [(1 << 40, 0), (0, 1 << 60), (1 << 13, 0, 1 << 13)])
def test_an_empty_array_of_huge_sizes_is_refused(shape):
    with pytest.raises(StatusError, match="has no values, but sizes that are too large") as caught:
        check_shapes(signature((-1,) * len(shape)), {"x0": zeros(*shape)})
    assert caught.value.code is Code.INVALID_ARGUMENT
    check_shapes(signature((-1, -1, -1)), {"x0": zeros(0, 1024, 1024)})


@pytest.mark.parametrize("shape", [(3,), (0,), ()])
def test_a_column_may_come_without_its_second_dimension(shape):
    inputs = {"x0": np.ones(shape, np.float32), "x1": zeros(2, 2)}
    shaped = check_shapes(signature((-1, 1), (2, 2)), inputs)
    assert shaped["x0"].shape == (shape[0] if shape else 1, 1)
    assert shaped["x1"] is inputs["x1"]
    outputs = {"y": shaped["x0"] * 2, "wide": zeros(len(shaped["x0"]), 5)}
    dropped = drop_column(outputs, shape)
    assert dropped["y"].shape == shape
    assert dropped["wide"] is outputs["wide"]


@given(
    st.none() | st.lists(st.integers(-1, 3), max_size=5).map(tuple),
    npst.array_shapes(min_dims=0, max_dims=9, min_side=0, max_side=3),
)
def test_what_passes_has_the_declared_rank_and_dimensions(declared, shape):
    try:
        shaped = check_shapes(signature(declared), {"x0": zeros(*shape)})["x0"].shape
    except StatusError:
        return
    if declared is None:
        assert len(shaped) <= MAX_RANK
    else:
        assert len(shaped) == len(declared)
        assert all(known in {-1, size} for known, size in zip(declared, shaped, strict=True))
