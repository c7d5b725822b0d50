"""Distances between samples, and that chance alone does not exceed their noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from timonel.data.inspection.distances import (
    difference_of_missing,
    difference_of_numbers,
    difference_of_words,
)
from timonel.data.inspection.distributions import Numbers, Words

FLOATS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)
WORDS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=60)


def numbers_of(values) -> Numbers:
    found = Numbers()
    found.add([float(value) for value in values])
    return found


def words_of(values) -> Words:
    found = Words()
    found.add([str(value) for value in values])
    return found


@given(FLOATS, FLOATS)
def test_numbers_have_a_symmetric_distance_between_zero_and_one(one, other) -> None:
    found = difference_of_numbers(numbers_of(one), numbers_of(other), 0.01)
    turned = difference_of_numbers(numbers_of(other), numbers_of(one), 0.01)
    same = difference_of_numbers(numbers_of(one), numbers_of(one), 0.01)
    assert found is not None
    assert turned is not None
    assert same is not None
    assert 0 <= found.distance <= 1 + 1e-9
    assert math.isclose(found.distance, turned.distance, abs_tol=1e-12)
    assert same.distance == 0


@given(WORDS, WORDS)
def test_words_have_a_distance_of_their_shares(one, other) -> None:
    known = [[word for word in words if word] for words in (one, other)]
    found = difference_of_words(words_of(one), words_of(other), 0.01)
    if not all(known):
        assert found is None
        return
    assert found is not None
    gaps = [
        abs(known[0].count(word) / len(known[0]) - known[1].count(word) / len(known[1]))
        for word in "abc"
    ]
    assert math.isclose(found.distance, max(gaps))


def test_the_divergence_is_that_of_scipy() -> None:
    one, other = [0] * 60 + [1] * 40, [0] * 30 + [1] * 70
    found = difference_of_numbers(numbers_of(one), numbers_of(other), 0.01)
    assert found is not None
    expected = jensenshannon([0.6, 0.4], [0.3, 0.7], base=2) ** 2
    assert math.isclose(found.distance, expected)
    apart = difference_of_numbers(numbers_of(range(50)), numbers_of(range(100, 150)), 0.01)
    assert apart is not None
    assert math.isclose(apart.distance, 1)


@pytest.mark.parametrize(("first", "second"), [(5, 5), (20, 200), (300, 300)])
def test_chance_alone_seldom_exceeds_the_noise(first: int, second: int) -> None:
    random = np.random.default_rng(0)
    above = dict.fromkeys(("numbers", "words", "missing"), 0)
    for _ in range(200):
        numbers = [numbers_of(random.lognormal(size=size)) for size in (first, second)]
        words = [words_of(random.zipf(1.5, size)) for size in (first, second)]
        for part, size in zip(words, (first, second), strict=True):
            part.add_missing(int(random.binomial(size, 0.05)))
        for name, found in (
            ("numbers", difference_of_numbers(*numbers, 0.01)),
            ("words", difference_of_words(*words, 0.01)),
            ("missing", difference_of_missing(*words, 0.01)),
        ):
            above[name] += found is not None and found.distance > found.noise
    assert max(above.values()) <= 8  # 2 are expected


def test_a_shift_exceeds_the_noise_of_large_samples() -> None:
    random = np.random.default_rng(0)
    small = [numbers_of(random.normal(shift, 1, 8)) for shift in (0, 0.6)]
    large = [numbers_of(random.normal(shift, 1, 2000)) for shift in (0, 0.6)]
    few, many = (difference_of_numbers(*pair, 1e-4) for pair in (small, large))
    assert few is not None
    assert many is not None
    assert few.distance < few.noise
    assert many.distance > max(0.05, many.noise)


def test_nothing_to_compare() -> None:
    assert difference_of_numbers(Numbers(), numbers_of([1]), 0.01) is None
    assert difference_of_words(Words(), words_of("a"), 0.01) is None
    assert difference_of_missing(Words(), words_of("a"), 0.01) is None
    assert difference_of_missing(words_of("a"), words_of("a"), 0.01) is None
