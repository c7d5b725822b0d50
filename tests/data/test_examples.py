from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.examples import decode_example, encode_example
from timonel.errors import CorruptError

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
LISTS = st.one_of(st.lists(st.binary()), st.lists(INT64), st.lists(FLOAT32))


@given(st.dictionaries(st.text(), LISTS, max_size=6))
def test_what_was_encoded_is_decoded(features: dict[str, list[object]]) -> None:
    assert decode_example(encode_example(features)) == features


@given(st.text(), FLOAT32)
def test_a_single_float_is_a_list_of_one(name: str, value: float) -> None:
    assert encode_example({name: value}) == encode_example({name: [value]})


def test_order_of_features_does_not_matter() -> None:
    assert encode_example({"a": 1, "b": b"x"}) == encode_example({"b": b"x", "a": 1})


def test_single_values_and_text() -> None:
    payload = encode_example({"number": 3, "real": 0.5, "text": "ñ", "bytes": b"\x00"})
    assert decode_example(payload) == {
        "number": [3],
        "real": [0.5],
        "text": ["ñ".encode()],
        "bytes": [b"\x00"],
    }


def test_other_bytes_are_refused() -> None:
    with pytest.raises(CorruptError, match=r"not a tf\.train\.Example"):
        decode_example(b"\xff\xff\xff")
