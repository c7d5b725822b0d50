from __future__ import annotations

import threading
from functools import partial

import pytest

from timonel.processes.ahead import call_ahead


def test_results_come_in_order() -> None:
    calls = [partial(int, str(number)) for number in range(100)]
    assert list(call_ahead(calls, threads=3, ahead=5, name="call")) == list(range(100))


def test_few_calls_are_ahead() -> None:
    taken: list[int] = []

    def calls():  # type: ignore[no-untyped-def] # a generator of lambdas
        for number in range(100):
            taken.append(number)
            yield lambda: None

    results = call_ahead(calls(), threads=2, ahead=4, name="call")
    next(results)
    assert len(taken) == 5
    results.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("call")]


def test_an_error_is_raised_in_its_place() -> None:
    results = call_ahead([lambda: 1, lambda: 1 // 0], threads=2, ahead=1, name="call")
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
