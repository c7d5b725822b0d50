"""Histograms of bounded size that do not depend on the order of values."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.inspection import distributions
from timonel.data.inspection.distributions import MAX_CELLS, Numbers, Words, bin_edges


def numbers_of(values) -> Numbers:
    found = Numbers()
    found.add(list(values))
    return found


@given(st.lists(st.floats(width=32), max_size=50))
def test_few_values_are_exact(values: list[float]) -> None:
    found = numbers_of(values)
    known = [value for value in values if math.isfinite(value)]
    assert found.count == len(known)
    assert found.missing == len(values) - len(known)
    cells, counts = found.cells()
    assert cells.tolist() == sorted(set(known))
    assert counts.tolist() == [known.count(cell) for cell in cells.tolist()]
    if known:
        assert found.quantiles([0, 1]) == [min(known), max(known)]


@given(st.integers(0, 5), st.permutations(range(8)))
def test_the_order_of_values_does_not_matter(seed: int, order: list[int]) -> None:
    values = np.random.default_rng(seed).lognormal(0, 3, 8000) * (-1) ** seed
    parts = np.split(values, 8)
    found, other = Numbers(), Numbers()
    for part in parts:
        found.add(part.tolist())
        assert found.count  # which empties its buffer
    other.add(np.concatenate([parts[number] for number in order]).tolist())
    for one, two in zip(found.cells(), other.cells(), strict=True):
        assert one.tolist() == two.tolist()
    assert found.bits == other.bits < 52


def test_many_values_stay_bounded_and_close() -> None:
    values = np.random.default_rng(0).normal(0, 1, 200_000)
    found = Numbers()
    for part in np.split(values, 20):
        found.add(part.tolist())
    assert len(found.cells()[0]) <= MAX_CELLS
    fractions = [0.01, 0.25, 0.5, 0.75, 0.99]
    expected = np.quantile(values, fractions)
    assert np.allclose(found.quantiles(fractions), expected, rtol=0.04, atol=0.01)
    assert math.isclose(found.moments.std, values.std(), rel_tol=1e-9)


def test_numbers_of_all_magnitudes_fit() -> None:
    values = np.concatenate([10.0 ** np.arange(-38, 38), -(10.0 ** np.arange(-38, 38))])
    found = Numbers()
    for factor in range(1, 41):
        found.add((values * factor).tolist())
    assert len(found.cells()[0]) <= MAX_CELLS
    assert found.cells()[1].sum() == found.count == 40 * 152


def test_bins_cover_the_values_without_outliers() -> None:
    small = numbers_of([1.0, 2.0, 2.0, 5.0])
    assert bin_edges([small]).tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert small.histogram(bin_edges([small])).tolist() == [1, 2, 0, 0, 1]
    spread = numbers_of([*np.linspace(0, 1, 99), 1e9])
    assert bin_edges([spread])[-1] < 4
    assert bin_edges([numbers_of([0.5])]).tolist()[0] == 0.5
    assert bin_edges([Numbers()]).tolist() == []
    assert Numbers().histogram(bin_edges([Numbers()])).tolist() == []


def test_too_many_words_are_no_longer_counted(monkeypatch) -> None:
    found = Words()
    found.add(["a", "", "b", "b"])
    assert (found.count, found.missing, found.common(1)) == (3, 1, [("b", 2)])
    monkeypatch.setattr(distributions, "MAX_WORDS", 100)
    found.add([str(number) for number in range(100)])
    assert found.count == 103
    assert found.summary()["distinct"] is None
