"""Columns as inputs of a model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from timonel.batch.tables import to_input
from timonel.batch.writers import to_arrow
from timonel.serving.signature import TensorSpec
from timonel.serving.status import StatusError


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec("x", dtype, (-1, *shape))


def test_text_of_a_csv_file() -> None:
    found = to_input(pa.array(["1", " 2.5 ", "NA", ""]), spec("DT_FLOAT"), "x")
    np.testing.assert_array_equal(found, np.array([1, 2.5, np.nan, np.nan], np.float32))
    assert found.dtype == np.float32
    assert to_input(pa.array(["1", "2"]), spec("DT_INT64"), "x").tolist() == [1, 2]
    assert to_input(pa.array(["true", "false"]), spec("DT_BOOL"), "x").tolist() == [True, False]
    assert to_input(pa.array(["é", None]), spec("DT_STRING"), "x").tolist() == ["é".encode(), b""]


@pytest.mark.parametrize(
    ("column", "expected", "message"),
    [
        (pa.array(["1", "$2"]), "DT_FLOAT", r"column x: '\$2' is not a finite number"),
        (pa.array(["1", "inf"]), "DT_FLOAT", "column x: 'inf' is not a finite number"),
        (pa.array([1, 1e39]), "DT_FLOAT", r"column x: '1e\+39' is too large for a 32-bit float"),
        ([1, float("inf")], "DT_FLOAT", "column x: 'inf' is not a finite number"),
        (pa.array(["1.5"]), "DT_INT64", "column x: .*1.5"),
        (pa.array([1, None]), "DT_INT32", "column x: expected DT_INT32, got a missing value"),
        (pa.array([300]), "DT_UINT8", "column x: .*300"),
        (pa.array([1.5]), "DT_INT64", "column x: .*1.5"),
        (pa.array([[1.0], [1.0, 2.0]]), "DT_FLOAT", "column x: .*size"),
        (["a"], "DT_FLOAT", "column x: "),
        ([None], "DT_INT32", "column x: "),
    ],
)
def test_values_that_do_not_fit(column, expected: str, message: str) -> None:
    with pytest.raises(StatusError, match=message):
        to_input(column, spec(expected), "x")


def test_flat_values_of_a_record_get_the_shape_of_the_input() -> None:
    found = to_input([[1.0, 2.0, 3.0, 4.0]] * 3, spec("DT_FLOAT", 2, 2), "x")
    assert found.shape == (3, 2, 2)


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.int64, np.float64]),
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=4),
        elements=st.integers(-1000, 1000),
    )
)
def test_outputs_can_be_inputs_again(values) -> None:
    column = to_arrow("y", values)
    assert len(column) == len(values)
    assert column.to_pylist() == values.tolist()
    names = {np.float32: "DT_FLOAT", np.int64: "DT_INT64", np.float64: "DT_DOUBLE"}
    found = to_input(column, spec(names[values.dtype.type], *values.shape[1:]), "y")
    np.testing.assert_array_equal(found, values)
