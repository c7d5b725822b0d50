from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.training.worker.state import checkpoint_format

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_data_come_back_with_their_types(value: Any) -> None:
    arrays: list[Any] = []
    encoded = json.loads(json.dumps(checkpoint_format.encode(value, arrays)))
    found = checkpoint_format.decode(encoded, arrays)
    assert found == value
    assert repr(found) == repr(value)


def test_arrays_and_numbers_of_numpy_come_back() -> None:
    value = {"a": [np.arange(3), (np.float32(0.5),)], "$b": np.zeros((2, 0))}
    arrays: list[Any] = []
    found = checkpoint_format.decode(
        json.loads(json.dumps(checkpoint_format.encode(value, arrays))), arrays
    )
    assert np.array_equal(found["a"][0], np.arange(3))
    assert found["a"][1] == (np.float32(0.5),)
    assert type(found["a"][1][0]) is np.float32
    assert found["$b"].shape == (2, 0)


@pytest.mark.parametrize("value", [object(), [print], {"a": {1, 2}}, np.array([None])])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(checkpoint_format.NotPlainError, match="expected"):
        checkpoint_format.encode(value, [])
