"""Which answers agree, and what their summaries tell."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.telemetry.answers import MAX_NUMBERS, Answer, agree, summarize

SECRET = "0c6d2f0e-5c3a-4f7e-9a53-0d6d1f6ad2b1"

shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
types = st.sampled_from(["float16", "float32", "float64", "int64", "uint8", "bool"])
outputs = st.dictionaries(
    st.sampled_from(["scores", "classes", "y"]),
    types.flatmap(lambda name: arrays.arrays(name, shapes)),
    max_size=2,
)


def agreed(one, other):
    return agree(summarize(SECRET, [{"y": one}]), summarize(SECRET, [{"y": other}]))


@given(outputs)
def test_equal_answers_agree(found):
    copies = {name: array.copy() for name, array in reversed(found.items())}
    assert agree(summarize(SECRET, [found]), summarize(SECRET, [copies]))


@given(outputs, outputs)
def test_the_order_of_two_answers_does_not_matter(one, other):
    pair = summarize(SECRET, [one]), summarize(SECRET, [other])
    assert agree(*pair) == agree(*reversed(pair))


@given(
    arrays.arrays("float32", (3, 5), elements=st.integers(-9, 9), unique=True),
    st.floats(1.5, 3),
)
def test_scores_agree_by_the_position_of_the_maximum(scores, factor):
    assert agreed(scores, scores * np.float32(factor))
    assert agreed(scores, np.exp(scores))
    assert not agreed(scores, np.roll(scores, 1, axis=1))


@given(st.floats(-1e6, 1e6), st.floats(0, 0.0095))
def test_numbers_agree_within_a_percent_or_a_thousandth(value, share):
    close = value + share * max(abs(value), 0.1)
    assert agreed(np.array([[value]]), np.array([[close]]))
    far = value + 0.011 * max(abs(value), 0.1) * 1.5
    assert not agreed(np.array([[value]]), np.array([[far]]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1.0, 2.0]), np.array([2.0, 4.0])),  # numbers of two rows, no scores
        (np.array([1.0]), np.array([1.0], np.float32)),
        (np.array([1.0]), np.array([[1.0]])),
        (np.array([1]), np.array([2])),
        (np.array([b"cat"], object), np.array([b"dog"], object)),
        (np.array([b"a", b"bc"], object), np.array([b"ab", b"c"], object)),
        (np.array([np.nan]), np.array([0.0])),
        (np.array([np.inf]), np.array([-np.inf])),
        (np.array([np.inf]), np.array([1e300])),
        (np.array([[np.nan, 0.0]]), np.array([[1.0, 0.0]])),
    ],
)
def test_answers_that_differ(one, other):
    assert agreed(one, other) is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([b"cat", b"dogs"], object), np.array([b"cat", b"dogs"])),
        (np.array(["\u00e9"]), np.array(["\u00e9".encode()], object)),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf])),
        (np.array([[np.nan, 0.0]]), np.array([[5.0, np.nan]])),
        (np.array([0.0]), np.array([-0.0009])),
        (np.array([[1.0, 2.0]]), np.array([[5.0, 6.0]])),
    ],
)
def test_answers_that_agree(one, other):
    assert agreed(one, other) is True


def test_all_outputs_of_all_executions_count():
    one, other = {"y": np.array([1.0])}, {"y": np.array([2.0])}
    first = summarize(SECRET, [one, one])
    assert agree(first, summarize(SECRET, [one, one]))
    assert not agree(first, summarize(SECRET, [one, other]))
    assert not agree(first, summarize(SECRET, [one]))
    assert not agree(summarize(SECRET, [one]), summarize(SECRET, [{"z": one["y"]}]))


def test_a_failure_agrees_with_nothing():
    failed, answer = summarize(SECRET, None), summarize(SECRET, [{"y": np.array([1.0])}])
    assert agree(failed, answer) is False
    assert agree(failed, failed) is None


def test_a_limited_number_of_floats_is_compared():
    found = summarize(SECRET, [{"a": np.zeros(70), "b": np.zeros((5000, 1))}])
    assert len(found.numbers) == 8 * MAX_NUMBERS
    assert agree(found, summarize(SECRET, [{"a": np.zeros(70), "b": np.zeros((5000, 1))}]))
    assert not agree(found, summarize(SECRET, [{"a": np.ones(70), "b": np.zeros((5000, 1))}]))


def test_without_the_id_summaries_of_equal_answers_have_nothing_in_common():
    found = {"y": np.zeros(4), "classes": np.array([b"cat"], object)}
    one, other = summarize("one", [found]), summarize("other", [found])
    assert not set(one) & set(other)
    numbers = {one.numbers[at : at + 8] for at in range(0, 32, 8)}
    assert len(numbers) == 4  # four times the same float
    assert summarize("one", [found]) == one
    assert isinstance(one, Answer)
