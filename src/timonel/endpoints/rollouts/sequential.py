"""Sequential tests of a rate, valid however often they are evaluated. Pure.

`sprt` is Wald's sequential probability ratio test (Wald 1945, "Sequential Tests of Statistical
Hypotheses") of good and bad events. It decides whether the rate of bad events is at most a limit,
or has at least twice its odds. By Ville's inequality, the likelihood ratio against a true
hypothesis ever reaches 1/a with a probability of at most a, however often it is evaluated. So

- a version whose rate is at most the limit is ever rejected with a probability of at most alpha,
- one with twice the odds (about twice the rate, if it is small) is ever accepted with at most beta.

For rates in between, the test ends with either result.

`excludes` tests one rate by a mixture of likelihood ratios over all rates, with Jeffreys' prior
(Robbins 1970, "Statistical Methods Related to the Law of the Iterated Logarithm"). The rates that
it does not exclude are a confidence sequence: with a probability of 1 - alpha, it contains the true
rate at all times simultaneously.
"""

from __future__ import annotations

import enum
import math

_PRIOR = 0.5
"""Both parameters of the beta distribution."""
_STEPS = 50


class SequentialVerdict(enum.StrEnum):
    """Current result of a test."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


def sprt(
    bad: int, total: int, low: float, high: float, alpha: float, beta: float
) -> SequentialVerdict:
    """Test whether the rate of bad events is within a limit.

    Args:
        low: Lower bound of the limit, if it is estimated.
        high: Upper bound of the limit.
        alpha: Probability to ever reject a rate of at most ``high``.
        beta: Probability to ever accept a rate with at least twice the odds of ``low``.
    """
    if likelihood_ratio(bad, total, high) >= -math.log(alpha):
        return SequentialVerdict.REJECTED
    if likelihood_ratio(bad, total, low) <= math.log(beta):
        return SequentialVerdict.ACCEPTED
    return SequentialVerdict.OPEN


def likelihood_ratio(bad: int, total: int, limit: float) -> float:
    """Return the log likelihood ratio of twice the odds of a limit against the limit."""
    if limit <= 0.0:
        return math.inf if bad else 0.0
    if limit >= 1.0:
        return 0.0 if bad == total else -math.inf
    twice = doubled(limit)
    return bad * math.log(twice / limit) + (total - bad) * math.log((1 - twice) / (1 - limit))


def doubled(rate: float) -> float:
    """Return the rate with twice the odds."""
    return 2 * rate / (1 + rate)


def excludes(rate: float, bad: int, total: int, alpha: float) -> bool:
    """Return whether the counts exclude a rate; alpha is the probability of ever being wrong."""
    if not total:
        return False
    if rate <= 0.0 or rate >= 1.0:
        return bad > 0 if rate <= 0.0 else bad < total
    good = total - bad
    evidence = _log_beta(bad + _PRIOR, good + _PRIOR) - _log_beta(_PRIOR, _PRIOR)
    return evidence - bad * math.log(rate) - good * math.log1p(-rate) >= -math.log(alpha)


def bounds(bad: int, total: int, alpha: float) -> tuple[float, float]:
    """Return the confidence sequence of a rate: valid at all times simultaneously."""
    if not total:
        return 0.0, 1.0
    found = bad / total
    return _edge(found, 0.0, bad, total, alpha), _edge(found, 1.0, bad, total, alpha)


def _edge(inside: float, outside: float, bad: int, total: int, alpha: float) -> float:
    if not excludes(outside, bad, total, alpha):
        return outside
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if excludes(middle, bad, total, alpha):
            outside = middle
        else:
            inside = middle
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
