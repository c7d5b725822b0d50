from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.rest.decimals import shortest_text
from timonel.serving.rest.jsontext import echo, parse
from timonel.serving.rest.rapidjson import first_error
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
        (b" \n ", "JSON Parse error: The document is empty. at offset: 3"),
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
        (b'{"a": nope}', "JSON Parse error: Invalid value. at offset: 7"),
        (b'{"a": [nul', "JSON Parse error: Invalid value. at offset: 10"),
        (b'{"a": [1, 2,]}', "JSON Parse error: Invalid value. at offset: 12"),
        ('{"ä": nope}'.encode(), "JSON Parse error: Invalid value. at offset: 8"),
        (b'{"a": Infinite}', "JSON Parse error: Invalid value. at offset: 13"),
        (b'{"a": -}', "JSON Parse error: Invalid value. at offset: 7"),
        (b'{"a": 1.}', "JSON Parse error: Miss fraction part in number. at offset: 8"),
        (b'{"a": 1e}', "JSON Parse error: Miss exponent in number. at offset: 8"),
        (
            b'{"a": [0, 1e400]}',
            "JSON Parse error: Number too big to be stored in double. at offset: 10",
        ),
        (
            b'{"a": ' + b"9" * 5000 + b"}",
            "JSON Parse error: Number too big to be stored in double. at offset: 6",
        ),
        (
            b'{"a": [01]}',
            "JSON Parse error: Missing a comma or ] after an array element. at offset: 8",
        ),
        (
            b'{"a": {"b": 1]}',
            "JSON Parse error: Missing a comma or } after an object member. at offset: 13",
        ),
        (
            b'{"a": "open',
            "JSON Parse error: Missing a closing quotation mark in string. at offset: 11",
        ),
        (
            b'{"a": "\\u12g4"}',
            "JSON Parse error: Incorrect hex digit after \\u escape in string. at offset: 7",
        ),
        (
            b'{"a": "\\ud800"}',
            "JSON Parse error: The surrogate pair in string is invalid. at offset: 7",
        ),
        (
            b'{"a": "\\ud800\\u0041"}',
            "JSON Parse error: The surrogate pair in string is invalid. at offset: 7",
        ),
        (b'{"a": "\n"}', "JSON Parse error: Invalid escape character in string. at offset: 7"),
        (b'{"a": "\\q"}', "JSON Parse error: Invalid escape character in string. at offset: 7"),
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


@given(values.map(json.dumps) | st.text('[]{},:"\\\\ue0179.+-NaInfinitytrule \n', max_size=12))
def test_what_is_refused_is_found_and_nothing_else(text):
    body = b'{"a": ' + text.encode() + b"}"
    found = first_error(body)
    if found is None:
        parse(body)
        return
    with pytest.raises(StatusError) as caught:
        parse(body)
    assert caught.value.message == f"JSON Parse error: {found[0]} at offset: {found[1]}"


def test_text_that_is_no_utf8_is_kept():
    text = parse(b'{"a": "\xff\xc3\xa9"}')["a"]
    assert text.encode("utf-8", "surrogateescape") == b"\xff\xc3\xa9"


def test_pairs_of_surrogates_and_large_integers_are_read_by_both_parsers():
    content = b'{"a": ["\\ud83d\\ude00", 18446744073709551616, 18446744073709551615, -0]}'
    expected = {"a": ["\U0001f600", 2.0**64, 2**64 - 1, 0]}
    assert parse(content) == parse(content + b" trailing") == expected
    assert parse(b'{"a": -NaN}')["a"] != parse(b'{"a": -NaN}')["a"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (2.0, "2.0"),
        (1 / 3, "0.333333343"),
        (1e300, "1e+300"),
        (math.nan, "NaN"),
        ([1 / 3, 2.0, 1e22], "[\n    0.3333333333333333,\n    2.0,\n    1e22\n]"),
        ({"a": {}, "b": []}, '{\n    "a": {},\n    "b": []\n}'),
        ('é"\\\x1f\n', '"é\\"\\\\\\u001F\\n"'),
        ([True, None, [0]], "[\n    true,\n    null,\n    [\n        0\n    ]\n]"),
    ],
)
def test_values_are_echoed_as_rapidjson_writes_them(value, text):
    assert echo(value) == text


def test_long_values_are_cut_at_256_bytes():
    assert echo("é" * 1000) == '"' + "é" * 127 + "..."
    assert len(echo([list(range(1000))] * 1000)) == 259
    assert echo("a" * 254) == '"' + "a" * 254 + '"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (123456.789, "123456.789"),
        (-2e-6, "-0.000002"),
        (1.5e-7, "1.5e-7"),
        (1e20, "100000000000000000000.0"),
        (1e21, "1e21"),
        (-math.inf, "-Infinity"),
    ],
)
def test_shortest_digits_are_laid_out_as_rapidjson_does(value, text):
    assert shortest_text(value) == text
