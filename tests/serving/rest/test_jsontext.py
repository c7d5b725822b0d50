from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.rest.jsontext import echo, parse
from timonel.serving.status import Code, StatusError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values), st.booleans())
def test_what_json_writes_is_read(value, spread):
    assert parse(json.dumps(value, indent=2 if spread else None).encode()) == value


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values))
def test_both_parsers_agree(value):
    # What follows the first value is ignored, and sends the text to the lenient parser.
    assert parse(json.dumps(value).encode() + b" trailing") == value


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("Inf", math.inf),
        ("-Inf", -math.inf),
    ],
)
def test_infinities_are_bare_tokens(token, expected):
    content = f'{{"Inf": [{token}, "Inf, \\" Inf", 1]}}'
    assert parse(content.encode()) == {"Inf": [expected, 'Inf, " Inf', 1]}


def test_nan_is_a_bare_token():
    assert math.isnan(parse(b'{"a": NaN}')["a"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b" \n ", "JSON Parse error: The document is empty"),
        (b"{", "JSON Parse error: Missing a name for object member. at offset: 1"),
        (b"{1: 2}", "JSON Parse error: Missing a name for object member. at offset: 1"),
        (
            b'{"a" 1}',
            "JSON Parse error: Missing a colon after a name of object member. at offset: 5",
        ),
        (
            b'{"a": 1 "b": 2}',
            "JSON Parse error: Missing a comma or } after an object member. at offset: 8",
        ),
        (
            b'{"a": [1 2]}',
            "JSON Parse error: Missing a comma or ] after an array element. at offset: 9",
        ),
        (b'{"a": nope}', "JSON Parse error: Invalid value. at offset: 6"),
        ('{"ä": nope}'.encode(), "JSON Parse error: Invalid value. at offset: 7"),
        (
            b'{"a": "open',
            "JSON Parse error: Missing a closing quotation mark in string. at offset: 6",
        ),
        (b'{"a": "\\q"}', "JSON Parse error: Invalid escape character in string. at offset: 7"),
        (b'{"a": "\xff"}', "JSON Parse error: Invalid encoding in string. at offset: 7"),
        (b"[" * 100_000, "JSON Parse error: The document is nested too deeply"),
        (b"[1]", "JSON Value: [\n    1\n] Is not object"),
        (b"NaN", "JSON Value: NaN Is not object"),
        (b'"text" more', 'JSON Value: "text" Is not object'),
    ],
)
def test_complaints(body, message):
    with pytest.raises(StatusError) as caught:
        parse(body)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)


def test_long_values_are_cut():
    assert len(echo(list(range(1000)))) < 300
