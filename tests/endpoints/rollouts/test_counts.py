"""Counts of requests and quantiles of their latencies."""

from __future__ import annotations

import math

import numpy as np

from timonel.endpoints.rollouts.counts import Counts, upper_ms


def test_buckets_have_two_significant_digits() -> None:
    assert [upper_ms(lower) for lower in (0, 1, 9, 10, 99, 100, 990, 1000, 25_000)] == [
        1, 2, 10, 11, 100, 110, 1000, 1100, 26_000,
    ]  # fmt: skip


def test_sums_and_differences() -> None:
    first = Counts(requests=5, errors=1, latencies={1: 3, 20: 2})
    second = Counts(requests=7, errors=1, rejections=1, latencies={1: 4, 20: 2, 300: 1})
    assert second - first == Counts(requests=2, rejections=1, latencies={1: 1, 300: 1})
    assert (second - first) + first == second


def test_requests_in_the_bucket_of_the_limit_are_not_slower() -> None:
    counts = Counts(latencies={100: 5, 110: 3, 120: 2})
    assert counts.slower(110) == 5
    assert counts.slower(111) == 2


def test_quantiles() -> None:
    counts = Counts(latencies={0: 50, 1: 40, 200: 10})
    assert counts.quantile_ms(0.5) == 1.0
    assert counts.quantile_ms(0.95) == 205.0
    assert math.isnan(Counts().quantile_ms(0.5))


def test_quantile_bounds_contain_the_quantile_at_all_times() -> None:
    random = np.random.default_rng(3)
    missed = 0
    for _ in range(200):
        counts = Counts()
        for _ in range(20):
            # The 90 % quantile of this distribution is 46.05 ms.
            values, found = np.unique(random.exponential(20, 100).astype(int), return_counts=True)
            counts += Counts(latencies=dict(zip(values.tolist(), found.tolist(), strict=True)))
            low, high = counts.quantile_bounds_ms(0.9, 0.05)
            if not low <= 46.06 or not high >= 46.05:
                missed += 1
                break
    assert missed / 200 <= 0.05
    assert 38 < low < high < 55


def test_without_enough_requests_the_bounds_are_unknown() -> None:
    assert Counts().quantile_bounds_ms(0.99, 0.05) == (0.0, math.inf)
    assert Counts(latencies={5: 10}).quantile_bounds_ms(0.99, 0.05) == (5.0, math.inf)
