"""Sequential tests: their probabilities of error, by simulation with a fixed seed."""

from __future__ import annotations

import numpy as np
import pytest

from timonel.endpoints.rollouts.sequential import (
    SequentialVerdict,
    bounds,
    doubled,
    excludes,
    likelihood_ratio,
    sprt,
)

RUNS = 2000
LOOKS = [50 * look for look in range(1, 200)]


def simulate(rate: float, limit: float, alpha: float, beta: float) -> tuple[float, float, float]:
    """Return the shares of runs rejected and accepted first, and the mean requests to the end."""
    random = np.random.default_rng(7)
    rejected = accepted = requests = 0
    for _ in range(RUNS):
        bad = np.cumsum(random.binomial(50, rate, len(LOOKS)))
        for total, found in zip(LOOKS, bad, strict=True):
            verdict = sprt(int(found), total, limit, limit, alpha, beta)
            if verdict is not SequentialVerdict.OPEN:
                break
        rejected += verdict is SequentialVerdict.REJECTED
        accepted += verdict is SequentialVerdict.ACCEPTED
        requests += total
    return rejected / RUNS, accepted / RUNS, requests / RUNS


@pytest.mark.parametrize("limit", [0.01, 0.1, 0.5])
def test_a_rate_at_the_limit_is_rejected_in_at_most_alpha(limit: float) -> None:
    rejected, accepted, _ = simulate(limit, limit, 0.05, 0.05)
    assert rejected <= 0.05
    assert accepted >= 0.95 - 0.01


@pytest.mark.parametrize("limit", [0.01, 0.1, 0.5])
def test_twice_the_odds_are_accepted_in_at_most_beta(limit: float) -> None:
    rejected, accepted, _ = simulate(doubled(limit), limit, 0.05, 0.05)
    assert accepted <= 0.05
    assert rejected >= 0.95


def test_a_bad_version_is_caught_early() -> None:
    # Ten times the limit of 1 %: the mean over 2000 runs, at looks of 50 requests.
    rejected, _, requests = simulate(0.1, 0.01, 0.05, 0.05)
    assert rejected == 1.0
    assert requests < 110
    # A version without errors is accepted after the same number of requests each time.
    assert simulate(0.0, 0.01, 0.05, 0.05) == (0.0, 1.0, 350)


def test_rejection_may_come_after_acceptance() -> None:
    assert sprt(0, 400, 0.01, 0.01, 0.05, 0.05) is SequentialVerdict.ACCEPTED
    assert sprt(40, 500, 0.01, 0.01, 0.05, 0.05) is SequentialVerdict.REJECTED


def test_a_limit_of_zero_or_one() -> None:
    assert sprt(1, 100, 0.0, 0.0, 0.05, 0.05) is SequentialVerdict.REJECTED
    assert sprt(0, 10_000, 0.0, 0.0, 0.05, 0.05) is SequentialVerdict.OPEN
    assert sprt(100, 100, 1.0, 1.0, 0.05, 0.05) is SequentialVerdict.OPEN
    # Events that had to be bad are no evidence; a good one proves the limit.
    assert likelihood_ratio(100, 100, 1.0) == 0
    assert sprt(99, 100, 1.0, 1.0, 0.05, 0.05) is SequentialVerdict.ACCEPTED


def test_an_estimated_limit_is_used_on_the_safe_side() -> None:
    # 2 % are too many for a limit of 1 %, and few for one of 10 %.
    assert sprt(20, 1000, 0.01, 0.01, 0.05, 0.05) is SequentialVerdict.REJECTED
    assert sprt(20, 1000, 0.1, 0.1, 0.05, 0.05) is SequentialVerdict.ACCEPTED
    assert sprt(20, 1000, 0.01, 0.1, 0.05, 0.05) is SequentialVerdict.OPEN


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_the_confidence_sequence_contains_the_rate_at_all_times(rate: float) -> None:
    random = np.random.default_rng(11)
    missed = 0
    for _ in range(RUNS):
        bad = np.cumsum(random.binomial(50, rate, len(LOOKS)))
        missed += any(
            excludes(rate, int(found), total, 0.05) for total, found in zip(LOOKS, bad, strict=True)
        )
    assert missed / RUNS <= 0.05


def test_bounds() -> None:
    assert bounds(0, 0, 0.05) == (0.0, 1.0)
    assert not excludes(0.5, 0, 0, 0.05)
    low, high = bounds(50, 1000, 0.05)
    assert 0.025 < low < 0.05 < high < 0.08
    assert bounds(0, 1000, 0.05)[0] == 0.0
    assert bounds(1000, 1000, 0.05)[1] == 1.0
    wider = bounds(50, 1000, 0.001)
    assert wider[0] < low
    assert wider[1] > high


def test_a_single_event_excludes_a_rate_of_zero_or_one() -> None:
    assert not excludes(0.0, 0, 1000, 0.05)
    assert excludes(0.0, 1, 1000, 0.05)
    assert not excludes(1.0, 1000, 1000, 0.05)
    assert excludes(1.0, 999, 1000, 0.05)
