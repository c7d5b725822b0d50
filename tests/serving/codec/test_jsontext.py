from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.codec.jsontext import MAX_TOKENS, echo, parse
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


@pytest.mark.parametrize("token", ["NaN", "-NaN"])
def test_nan_is_a_bare_token(token):
    found = parse(f'{{"\\"-NaN": {token}, "a": "Inf -NaN \\\\"}}'.encode())
    assert math.isnan(found['"-NaN'])
    assert found["a"] == "Inf -NaN \\"


@pytest.mark.parametrize("unit", [b'\\"', b'"', b"Inf,", b"\\"])
def test_any_text_is_searched_for_words_in_linear_time(unit):
    began = time.process_time()
    with pytest.raises(StatusError):
        parse(b'{"' + unit * 200_000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n ",
        b"{",
        b"{1: 2}",
        b'{"a" 1}',
        b'{"a": 1 "b": 2}',
        b'{"a": [1 2]}',
        b'{"a": nope}',
        b'{"a": [nul',
        b'{"a": [1, 2,]}',
        '{"ä": nope}'.encode(),
        b'{"a": Infinite}',
        b'{"a": InfInf}',
        b'{"a": 1-NaN}',
        b'{"a": --NaN}',
        b'{"a": +Inf}',
        b'{"a": -}',
        b'{"a": 1.}',
        b'{"a": 1e}',
        b'{"a": [0, 1e400]}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": [01]}',
        b'{"a": {"b": 1]}',
        b'{"a": "open',
        b'{"a": "\\u12g4"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\ud800\\u0041"}',
        b'{"a": "\\udc00"}',
        b'{"a": "\n"}',
        b'{"a": "\\q"}',
        b"[" * 50_000,
        b'{"a":' * 10_000,
    ],
)
def test_what_is_no_json_is_refused(body):
    with pytest.raises(StatusError, match=r"\AINVALID_ARGUMENT: JSON Parse error: "):
        parse(body)


def test_an_error_names_its_place():
    for start in (b"", b" " * 7):
        with pytest.raises(StatusError, match=f"at offset: {len(start) + 6}$"):
            parse(start + b'{"a": nope}')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[1]", "JSON Value: [\n    1\n] Is not object"),
        (b"NaN", "JSON Value: NaN Is not object"),
        (b'"text" more', 'JSON Value: "text" Is not object'),
    ],
)
def test_what_is_no_object_is_refused(body, message):
    with pytest.raises(StatusError) as caught:
        parse(body)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, message)


@pytest.mark.parametrize(
    "unit", [b"1,", b'{"a":1},', b"[],", b'"a",', b'"a":', b"[", b'{"a":', b","]
)
def test_the_number_of_values_is_bounded(unit):
    tokens = sum(unit.count(mark) for mark in (b",", b":", b"[", b"{"))
    within = b"[" + unit * (MAX_TOKENS // tokens - 1)
    with pytest.raises(StatusError, match="JSON Parse error"):
        parse(within)
    with pytest.raises(StatusError, match=f"The JSON has more than {MAX_TOKENS} values"):
        parse(within + unit * 2)


def test_text_that_is_no_utf8_is_kept():
    text = parse(b'{"a": "\xff\xc3\xa9"}')["a"]
    assert text.encode("utf-8", "surrogateescape") == b"\xff\xc3\xa9"


def test_pairs_of_surrogates_and_large_integers_are_read_by_both_parsers():
    content = b'{"a": ["\\ud83d\\ude00", 18446744073709551616, 18446744073709551615, -0]}'
    expected = {"a": ["\U0001f600", 2.0**64, 2**64 - 1, 0]}
    assert parse(content) == parse(content + b" trailing") == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (2.0, "2.0"),
        (1 / 3, "0.3333333333333333"),
        (1e300, "1e+300"),
        (1.25e300 / 3, "4.166666666666667e+299"),
        (0.2, "0.2"),
        (9e6, "9000000.0"),
        (123456.0, "123456.0"),
        (16777216.0, "16777216.0"),
        (-0.0, "-0.0"),
        (math.nan, "NaN"),
        ([1 / 3, 2.0, 1e22], "[\n    0.3333333333333333,\n    2.0,\n    1e+22\n]"),
        ({"a": {}, "b": []}, '{\n    "a": {},\n    "b": []\n}'),
        ('é"\\\x1f\n', '"é\\"\\\\\\u001f\\n"'),
        ([True, None, [0]], "[\n    true,\n    null,\n    [\n        0\n    ]\n]"),
    ],
)
def test_values_are_echoed_as_indented_json(value, text):
    assert echo(value) == text


def test_long_values_are_cut_at_256_bytes():
    assert echo("é" * 1000) == '"' + "é" * 127 + "..."
    assert len(echo([list(range(1000))] * 1000)) == 259
    assert echo("a" * 254) == '"' + "a" * 254 + '"'


LONG = st.sampled_from(["a", "é", "\\", '"', "\n"]).map(lambda one: one * 300)


@given(
    st.recursive(
        values | LONG | st.integers().map(lambda number: [number] * 300),
        lambda inner: (
            st.lists(inner, max_size=300) | st.dictionaries(LONG | st.text(), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_an_echo_is_the_beginning_of_the_whole_text(value):
    whole = json.dumps(value, ensure_ascii=False, indent=4).encode("utf-8", "replace")
    expected = whole if len(whole) <= 256 else whole[:256].decode(errors="ignore").encode() + b"..."
    assert echo(value).encode() == expected


def test_an_echo_does_not_write_all_of_a_large_value():
    class Counted(str):
        __slots__ = ()
        read = 0

        def __getitem__(self, part):
            Counted.read += len(piece := str.__getitem__(self, part))
            return piece

    assert echo({"b64": Counted("a" * 10**6), "c": Counted("a")}).endswith("aaa...")
    assert 0 < Counted.read < 1000
