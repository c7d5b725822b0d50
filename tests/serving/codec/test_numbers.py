"""The reader of arrays of numbers. That requests read with it are right: test_number_arrays."""

from __future__ import annotations

import math
import struct
import threading
from decimal import Decimal

import numpy as np
import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.serving.codec.readers import IS_MISSING
from timonel.serving.codec import number_arrays

pytestmark = pytest.mark.skipif(IS_MISSING, reason="there is no compiler")


def read(text):
    body = text.encode()
    found = number_arrays.NATIVE(body, 0, len(body))
    return None if found is None else (np.frombuffer(found[0]).reshape(found[1]), found[2])


def bits(number):
    return struct.pack("d", number)


def of_digits(digits, point, exponent):
    point = min(point, len(digits) - 1)
    whole = digits[: len(digits) - point].lstrip("0") or "0"
    return f"{whole}.{digits[len(digits) - point :] or '0'}{exponent}"


def half_way(mantissa, exponent, digits):
    """Return what lies between two doubles, or next to that."""
    return f"{Decimal(2 * mantissa + 1) * Decimal(2) ** exponent:.{digits}e}"


mantissas = st.integers(2**52, 2**53 - 1)
decimals = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda x: str(np.float32(x))),
    st.builds(
        of_digits,
        st.text("0123456789", min_size=1, max_size=25),
        st.integers(0, 25),
        st.sampled_from(["", "e0"]) | st.integers(-45, 45).map(lambda power: f"E{power:+}"),
    ),
    st.builds(half_way, mantissas, st.integers(-90, 90), st.integers(14, 60)),
)


@given(decimals)
@example("9007199254740993.0")  # between two doubles, and the next one below is even
@example("9007199254740995.0")
@example("0.000000000000000000000000000000000000000000001")
@example("123456789012345678901234567890.5")
@example("1e-400")
@example("4.9406564584124654e-324")
@example("1.7976931348623157e308")
def test_decimals_are_rounded_as_python_does(text):
    values, whole = read(f"[{text},-{text}]" if not text.startswith("-") else f"[{text}]")
    assert [bits(value) for value in values] == [
        bits(float(each)) for each in ([text, f"-{text}"] if values.size == 2 else [text])
    ]
    assert not whole or ("." not in text and "e" not in text)


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(0)
def test_integers_are_rounded_as_python_does(number):
    values, whole = read(f"[{number}]")
    assert bits(values[0]) == bits(float(number))
    assert whole


def test_minus_zero_is_one_only_with_a_fraction():
    values, _ = read("[-0, -0.0, -0e1]")
    assert [bits(value) for value in values] == [bits(0.0), bits(-0.0), bits(-0.0)]


@pytest.mark.parametrize(
    "text",
    ["", "[", "[1", "[1,", "[1,]", "[,1]", "[01]", "[-]", "[+1]", "[1.]", "[.5]", "[1e]",
     "[1e+]", "[0x10]", "[1.5p3]", "[1]]", "[1] 2", "[1 2]", "[1e309]", "[100000000000000000000]",
     "[1.5f]", "[-9223372036854775809]", "[1\0]", "[--1]", "[ ]", "[1][2]", "[inf]",
     "[--NaN]", "[Nan]", "[NaNa]", "[Infinit", "[+Inf]", "[Infi]", "[Infinityy]"],
)  # fmt: skip
def test_it_gives_up(text):
    assert read(text) is None


def test_words_for_numbers_that_json_does_not_have():
    values, whole = read("[NaN, -NaN, Infinity, -Infinity ,Inf,-Inf,1]")
    assert np.isnan(values[:2]).all()
    assert values[2:].tolist() == [math.inf, -math.inf, math.inf, -math.inf, 1.0]
    assert not whole


def test_the_text_around_it_is_not_looked_at():
    body = b"9[1, 2.5]9"
    content, shape, whole = number_arrays.NATIVE(body, 1, len(body) - 1)
    assert np.frombuffer(content).tolist() == [1, 2.5]
    assert shape == (2,)
    assert not whole
    assert number_arrays.NATIVE(body, 1, len(body) - 2) is None


def test_wrong_arguments_are_refused():
    for start, end in [(-1, 3), (0, 4), (3, 2)]:
        with pytest.raises(ValueError, match="part of the text"):
            number_arrays.NATIVE(b"[1]", start, end)
    with pytest.raises(TypeError):
        number_arrays.NATIVE("[1]", 0, 3)
    assert number_arrays.NATIVE(b"1", 0, 1) is None


def test_others_go_on_while_it_reads():
    body = b"[" + b",".join([b"0.1234567890123456789"] * 2_000_000) + b"]"
    begun = threading.Event()
    done = threading.Event()

    def work():
        begun.set()
        assert number_arrays.NATIVE(body, 0, len(body)) is not None
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    seen = 0
    while not done.is_set():
        seen += 1
    thread.join()
    assert seen > 1000


def test_nothing_is_kept():
    """Of what it has read, and of what it gave up on."""
    good = b"[" + b",".join([b"0.5"] * 100_000) + b"]"
    bad = good[:-1] + b",]"

    def several():
        for body in (good, bad) * 50:
            number_arrays.NATIVE(body, 0, len(body))

    several()
    before = psutil.Process().memory_info().rss
    several()
    several()
    assert psutil.Process().memory_info().rss < before + 8 * 2**20
