"""Guards: their texts and what they decide."""

from __future__ import annotations

import numpy as np
import pytest

from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.guards import Guard, check, parse_guards
from timonel.endpoints.rollouts.sequential import SequentialVerdict
from timonel.errors import SpecError


def test_parse() -> None:
    text = "error_rate<1%, p99 < 1.2x,p50<0.2s,rejection_rate<1.5x"
    assert parse_guards(text) == (
        Guard("error_rate", 0.01, "rate"),
        Guard("p99", 1.2, "factor"),
        Guard("p50", 200.0, "ms"),
        Guard("rejection_rate", 1.5, "factor"),
    )


def test_a_version_may_have_to_be_as_good_as_the_other() -> None:
    assert parse_guards("p99<1x") == (Guard("p99", 1.0, "factor"),)


def test_texts_can_be_parsed_again() -> None:
    text = "error_rate<0.25%,p99<1.2x,p50<200ms,rejection_rate<1.5x,agreement>98.5%"
    assert ",".join(map(str, parse_guards(text))) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs a guard"),
        ("error_rate", "not a guard: 'error_rate'"),
        ("eror_rate<1%", "no such metric: 'eror_rate': did you mean 'error_rate'"),
        ("error_rate>1%", "expected error_rate<LIMIT, got 'error_rate>1%'"),
        ("agreement<98%", "expected agreement>LIMIT, got 'agreement<98%'"),
        ("agreement>1.2x", "invalid limit of agreement: 1.2x"),
        ("agreement>100%", "invalid limit of agreement: 100%"),
        ("agreement>200ms", "invalid limit of agreement: 200ms"),
        ("error_rate<1", "invalid limit of error_rate: 1"),
        ("error_rate<0%", "invalid limit of error_rate: 0%"),
        ("error_rate<200ms", "invalid limit of error_rate: 200ms"),
        ("p99<1%", "invalid limit of p99: 1%"),
        ("p99<200", "invalid limit of p99: 200"),
        ("p99<0.5x", "invalid limit of p99: 0.5x"),
        ("p99<0ms", "invalid limit of p99: 0ms"),
        ("p99<5parsecs", "expected a duration"),
        ("p99<1.2.3x", "not a guard"),
        ("p99<2x,p99<200ms", "several guards for p99"),
    ],
)
def test_bad_guards(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_guards(text)


def latencies(random: np.random.Generator, mean_ms: float, size: int) -> Counts:
    values = random.exponential(mean_ms, size).astype(int)
    # As Envoy: two significant digits.
    lowers = np.where(values < 100, values, values // 10 * 10)
    found, counts = np.unique(lowers, return_counts=True)
    return Counts(requests=size, latencies=dict(zip(found.tolist(), counts.tolist(), strict=True)))


def run(text: str, factor: float, seed: int) -> tuple[SequentialVerdict, int]:
    """Return the first verdict of a guard, and the requests until then."""
    random = np.random.default_rng(seed)
    (guard,) = parse_guards(text)
    version, other = Counts(), Counts()
    for _ in range(200):
        version += latencies(random, 30 * factor, 25)
        other += latencies(random, 30, 75)
        found = check(guard, version, other, 0.05, 0.05).verdict
        if found is not SequentialVerdict.OPEN:
            break
    return found, version.requests


def test_relative_latency() -> None:
    runs = 60
    same = [run("p90<1.3x", 1.0, seed) for seed in range(runs)]
    slow = [run("p90<1.3x", 2.2, seed) for seed in range(runs)]
    assert sum(verdict is SequentialVerdict.REJECTED for verdict, _ in same) <= 0.05 * runs
    assert sum(verdict is SequentialVerdict.REJECTED for verdict, _ in slow) >= 0.95 * runs
    assert np.mean([requests for _, requests in slow]) < 250


def test_absolute_latency() -> None:
    found = check(
        parse_guards("p99<200ms")[0], Counts(latencies={150: 200, 210: 50}), Counts(), 0.05, 0.05
    )
    assert found.verdict is SequentialVerdict.REJECTED
    assert str(found) == "p99 is 219.5ms of 250 requests (limit 200ms)"


def test_a_relative_limit_is_unknown_without_requests_to_compare_with() -> None:
    found = check(parse_guards("p99<1.2x")[0], Counts(latencies={900: 1000}), Counts(), 0.05, 0.05)
    assert (found.verdict, found.limit) == (SequentialVerdict.OPEN, "unknown")


def test_relative_error_rates_have_a_smallest_limit() -> None:
    guard = parse_guards("error_rate<1.5x")[0]
    other = Counts(requests=1_000_000)
    good = check(guard, Counts(requests=2000, errors=2), other, 0.05, 0.05)
    assert (good.verdict, good.limit) == (SequentialVerdict.ACCEPTED, "0.5%")
    bad = check(guard, Counts(requests=2000, errors=40), other, 0.05, 0.05)
    assert bad.verdict is SequentialVerdict.REJECTED


@pytest.mark.parametrize(
    ("pairs", "agreements", "verdict", "text"),
    [
        (0, 0, SequentialVerdict.OPEN, "unknown of 0 compared answers"),
        (20, 20, SequentialVerdict.OPEN, "100% (77.6% to 100%) of 20 compared answers"),
        (160, 160, SequentialVerdict.ACCEPTED, "100% (96.26% to 100%) of 160 compared answers"),
        (20, 10, SequentialVerdict.REJECTED, "50% (19.3% to 80.7%) of 20 compared answers"),
    ],
)
def test_agreement(pairs: int, agreements: int, verdict: SequentialVerdict, text: str) -> None:
    counts = Counts(pairs=pairs, agreements=agreements)
    found = check(parse_guards("agreement>98%")[0], counts, Counts(), 0.05, 0.05)
    assert found.verdict is verdict
    assert str(found) == f"agreement is {text} (limit 98%)"


def test_a_version_without_requests_has_no_errors() -> None:
    (guard,) = parse_guards("error_rate<50%")
    found = check(guard, Counts(), Counts(), 0.05, 0.05)
    assert str(found) == "error_rate is 0% of 0 requests (limit 50%)"
    # One bad request of one is all of them.
    found = check(guard, Counts(requests=1, errors=1), Counts(), 0.05, 0.05)
    assert found.value == "100%"
