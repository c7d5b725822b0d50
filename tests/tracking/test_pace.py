from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.tracking.pace import EVIDENCE_S, Paces, format_ms


def pace(t: float, task: str, step_ms: float | None, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "pace", "task": task, "step_ms": step_ms, **more}


def told(*rounds: dict[str, float], every_s: float = 2.0) -> Paces:
    """Feed rounds of reports: what each task computes."""
    paces = Paces()
    for number, values in enumerate(rounds):
        for place, (task, step_ms) in enumerate(values.items()):
            paces.feed(pace(100.0 + number * every_s + place * 0.01, task, step_ms))
    return paces


EVEN = {"chief-0": 40.0, "worker-0": 38.0, "worker-1": 44.0}
ONE_SLOW = {**EVEN, "worker-1": 61.0}


def test_the_slowest_is_named_after_some_seconds_with_what_the_others_do() -> None:
    assert told(ONE_SLOW, ONE_SLOW, ONE_SLOW).slowest is None  # four seconds
    slowest = told(*[ONE_SLOW] * 4).slowest
    assert slowest is not None
    assert (slowest.task, slowest.step_ms, slowest.others_ms) == ("worker-1", 61.0, 39.0)
    assert str(slowest) == "worker-1 computes 61 ms a step, the others 39 ms"


def test_nobody_is_named_where_the_difference_is_small_or_passes() -> None:
    assert told(*[EVEN] * 10).slowest is None
    assert told(ONE_SLOW, ONE_SLOW, EVEN, ONE_SLOW, ONE_SLOW, ONE_SLOW).slowest is None
    assert told(*[{"chief-0": 40.0}] * 10).slowest is None


def test_of_two_slow_ones_the_slower_is_named() -> None:
    five = {**EVEN, "worker-2": 41.0, "worker-3": 90.0, "worker-4": 80.0}
    slowest = told(*[five] * 4).slowest
    assert slowest is not None
    assert slowest.task == "worker-3"


def test_a_restart_of_the_job_and_a_task_that_is_gone_are_forgotten() -> None:
    paces = told(*[ONE_SLOW] * 4)
    paces.feed({"t": 110.0, "type": "restart", "generation": 2})
    assert paces.tasks == ()
    assert paces.slowest is None
    paces = told(*[ONE_SLOW] * 4)
    paces.feed(pace(200.0, "chief-0", 40.0))
    assert [found.task for found in paces.tasks] == ["chief-0"]


def test_tasks_are_in_the_order_of_their_numbers() -> None:
    names = ["worker-10", "worker-9", "chief-0", "worker-0", "odd"]
    paces = told(dict.fromkeys(names, 1.0))
    assert [found.task for found in paces.tasks] == [
        "chief-0", "odd", "worker-0", "worker-9", "worker-10",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"), [(4.21, "4.2 ms"), (9.96, "10 ms"), (61.4, "61 ms"), (1250.0, "1,250 ms")]
)
def test_milliseconds_for_people(value: float, text: str) -> None:
    assert format_ms(value) == text


anything = st.none() | st.booleans() | st.text(max_size=3) | st.floats() | st.integers()


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e9), st.sampled_from(["a-0", "a-1", "", "\n-3"]), anything, anything
        )
    )
)
def test_no_event_is_an_obstacle(rows: list[tuple[float, str, object, object]]) -> None:
    paces = Paces()
    for t, task, step_ms, rate in rows:
        paces.feed({"t": t, "type": "pace", "task": task, "step_ms": step_ms, "wait_ms": rate,
                    "examples_per_s": rate})  # fmt: skip
        slowest = paces.slowest
        assert slowest is None or slowest.step_ms > slowest.others_ms
    paces.feed({"t": 0.0, "type": "pace", "task": 7})
    paces.feed({"t": 0.0, "type": "pace"})
    assert EVIDENCE_S > 0
