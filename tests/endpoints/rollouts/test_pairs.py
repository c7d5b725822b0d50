"""Pairs of answers: joined by request, whatever their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.endpoints.rollouts.counts import Counts
from timonel.endpoints.rollouts.pairs import Pairs
from timonel.serving.telemetry.answers import Answer


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 9)), max_size=60))
def test_each_request_is_a_pair_once(events: list[tuple[int, int]]) -> None:
    pairs, total = Pairs(), Counts()
    first = dict.fromkeys(events)
    for version, request in first:
        contents = "same" if request < 5 else f"of {version}"
        total += pairs.add(0.0, version, [Answer(str(request), contents)])
    both = [each for each in range(10) if (1, each) in first and (2, each) in first]
    assert total == Counts(pairs=len(both), agreements=sum(each < 5 for each in both))


def test_answers_of_one_version_are_no_pair() -> None:
    pairs = Pairs()
    assert pairs.add(0.0, 2, [Answer("a", "x"), Answer("a", "y")]) == Counts()
    assert pairs.add(1.0, 1, [Answer("a", "x")]) == Counts(pairs=1, agreements=1)


def test_requests_that_both_versions_refuse_are_not_compared() -> None:
    pairs = Pairs()
    pairs.add(0.0, 1, [Answer("a"), Answer("b"), Answer("c", "x")])
    assert pairs.add(0.0, 2, [Answer("a"), Answer("b", "y"), Answer("c")]) == Counts(pairs=2)


def test_answers_wait_for_a_minute_at_most() -> None:
    pairs = Pairs()
    pairs.add(0.0, 1, [Answer("a", "x")])
    pairs.add(50.0, 1, [Answer("b", "x")])
    pairs.add(61.0, 1, [])
    found = pairs.add(62.0, 2, [Answer("a", "x"), Answer("b", "x")])
    assert found == Counts(pairs=1, agreements=1)


@pytest.mark.slow
def test_few_answers_wait() -> None:
    pairs = Pairs()
    pairs.add(0.0, 1, (Answer(str(number), "x") for number in range(30_000)))
    found = pairs.add(0.0, 2, (Answer(str(number), "x") for number in range(30_000)))
    assert found.pairs == 20_000
