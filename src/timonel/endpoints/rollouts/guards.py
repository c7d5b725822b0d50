"""Guards: conditions that a version must meet to get more requests. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.sequential import SequentialVerdict, bounds, sprt
from timonel.engines.resources import Observed
from timonel.errors import SpecError, did_you_mean
from timonel.units import parse_seconds

Unit = Literal["rate", "factor", "ms"]

RATES = ("error_rate", "rejection_rate")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
AGREEMENT = "agreement"
METRICS = (*RATES, *QUANTILES, AGREEMENT)
LEAST_RATE = 0.005
"""Smallest limit of a relative guard of a rate; testing a smaller one takes too many requests."""
CONFIDENCE = 0.05
"""Probability that a value ever leaves its confidence interval."""

_GUARD = re.compile(r"\s*([a-z_0-9]+)\s*([<>])\s*([0-9.]+)\s*(%|x|[a-z]*)\s*\Z")
_HINT = "write error_rate<1%, error_rate<1.5x, p99<1.2x, p99<200ms or agreement>98%"


@dataclass(frozen=True)
class Guard:
    """Condition on one metric.

    Attributes:
        metric: One of `METRICS`.
        limit: Upper limit; lower limit for ``agreement``.
        unit: ``rate`` between 0 and 1, ``factor`` relative to the other version, or ``ms``.
    """

    metric: str
    limit: float
    unit: Unit

    def __str__(self) -> str:
        return f"{self.metric}{_sign(self.metric)}{_text(self.limit, self.unit)}"


class GuardState(Observed):
    """State of one guard.

    Attributes:
        guard: The guard as text.
        verdict: Current result.
        value: Observed value, as text with its unit.
        limit: Absolute limit, as text with its unit.
        requests: Number of requests or compared answers that the value is based on.
    """

    guard: str
    verdict: SequentialVerdict
    value: str
    limit: str
    requests: int

    def __str__(self) -> str:
        metric = re.split("[<>]", self.guard)[0]
        what = "compared answers" if metric == AGREEMENT else "requests"
        return f"{metric} is {self.value} of {self.requests} {what} (limit {self.limit})"


def parse_guards(text: str) -> tuple[Guard, ...]:
    """Parse guards separated by commas."""
    guards = tuple(_parse(part) for part in text.split(",") if part.strip())
    if not guards:
        raise SpecError("a rollout needs a guard", hint=_HINT)
    metrics = [guard.metric for guard in guards]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise SpecError(f"several guards for {metric}", hint="give one of them")
    return guards


def _parse(text: str) -> Guard:
    match = _GUARD.match(text)
    if match is None:
        raise SpecError(f"not a guard: {text.strip()!r}", hint=_HINT)
    metric, sign, digits, unit = match.groups()
    if metric not in METRICS:
        raise SpecError(
            f"no such metric: {metric!r}",
            hint=did_you_mean(metric, METRICS) or f"the metrics are {', '.join(METRICS)}",
        )
    if sign != _sign(metric):
        expected = f"{metric}{_sign(metric)}LIMIT"
        raise SpecError(f"expected {expected}, got {text.strip()!r}", hint=_HINT)
    try:
        value = float(digits)
    except ValueError:
        raise SpecError(f"not a guard: {text.strip()!r}", hint=_HINT) from None
    if unit == "%" and metric not in QUANTILES and 0 < value < 100:
        return Guard(metric, value / 100, "rate")
    if unit == "x" and value >= 1 and metric != AGREEMENT:
        return Guard(metric, value, "factor")
    if metric in QUANTILES and unit not in ("", "%", "x") and value > 0:
        return Guard(metric, parse_seconds(digits + unit) * 1000, "ms")
    raise SpecError(f"invalid limit of {metric}: {digits}{unit}", hint=_HINT)


def check(guard: Guard, version: Counts, other: Counts, alpha: float, beta: float) -> GuardState:
    """Check a guard against the counts so far.

    The limit of a relative guard is estimated from the other version, with half of alpha for its
    confidence interval. Rejection uses the upper bound of the interval, acceptance the lower one.

    Args:
        other: Counts of the version that it replaces, over the same time.
        alpha: Probability to ever reject a version that meets the condition.
    """
    if guard.metric == AGREEMENT:
        return _check_agreement(guard, version, alpha, beta)
    if guard.unit == "factor":
        alpha, beta = alpha / 2, beta / 2
    low, high = _limits(guard, other, min(alpha, beta))
    unit: Unit = "ms" if guard.metric in QUANTILES else "rate"
    if guard.metric in QUANTILES:
        rate, total = 1 - QUANTILES[guard.metric], version.timed
        verdict = sprt(version.slower(high), total, rate, rate, alpha, beta)
        if verdict is SequentialVerdict.ACCEPTED:
            verdict = sprt(version.slower(low), total, rate, rate, alpha, beta)
            verdict = SequentialVerdict.OPEN if verdict is SequentialVerdict.REJECTED else verdict
        value = version.quantile_ms(QUANTILES[guard.metric])
    else:
        bad, total = _bad(guard.metric, version)
        verdict = sprt(bad, total, low, high, alpha, beta)
        value = bad / max(1, total)
    return GuardState(
        guard=str(guard),
        verdict=verdict,
        value=_text(value, unit),
        limit=_text(high, unit),
        requests=total,
    )


def _check_agreement(guard: Guard, version: Counts, alpha: float, beta: float) -> GuardState:
    rate, pairs = 1 - guard.limit, version.pairs
    value = "unknown"
    if pairs:
        low, high = bounds(version.agreements, pairs, CONFIDENCE)
        found = _text(version.agreements / pairs, "rate")
        value = f"{found} ({_text(low, 'rate')} to {_text(high, 'rate')})"
    return GuardState(
        guard=str(guard),
        verdict=sprt(pairs - version.agreements, pairs, rate, rate, alpha, beta),
        value=value,
        limit=_text(guard.limit, "rate"),
        requests=pairs,
    )


def _limits(guard: Guard, other: Counts, alpha: float) -> tuple[float, float]:
    """Return bounds of the absolute limit; equal unless it is estimated."""
    if guard.unit != "factor":
        return guard.limit, guard.limit
    if guard.metric in QUANTILES:
        low, high = other.quantile_bounds_ms(QUANTILES[guard.metric], alpha)
        return guard.limit * low, guard.limit * high
    low, high = bounds(*_bad(guard.metric, other), alpha)
    return max(LEAST_RATE, guard.limit * low), max(LEAST_RATE, guard.limit * high)


def _bad(metric: str, counts: Counts) -> tuple[int, int]:
    bad = counts.errors if metric == "error_rate" else counts.rejections
    # Envoy's counters are read at slightly different times.
    return min(bad, counts.requests), counts.requests


def _sign(metric: str) -> str:
    return ">" if metric == AGREEMENT else "<"


def _text(value: float, unit: Unit) -> str:
    if unit == "rate":
        return f"{100 * value:.4g}%"
    if not math.isfinite(value):
        return "unknown"
    return f"{value:.4g}{'x' if unit == 'factor' else 'ms'}"
