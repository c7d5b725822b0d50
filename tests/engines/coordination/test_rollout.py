from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.engines import ServiceSpec
from timonel.engines.coordination.rollout import (
    FAILURES,
    RESET_AFTER_S,
    SURGE,
    Replica,
    adopted,
    changes,
    checked,
    ended,
    launched,
    stopping,
)
from timonel.engines.service_spec import ReplicaState

SPEC = ServiceSpec(name="web", module="m", start_timeout_s=5, stop_grace_s=2)
STATES: tuple[ReplicaState, ...] = ("starting", "ready", "unready", "restarting", "stopping")


def replica(name: str = "a", template: str = "new", state: ReplicaState = "ready") -> Replica:
    return Replica(name=name, revision=1, template=template, state=state, attempt=1, since=0.0)


@st.composite
def replicas(draw: st.DrawFn) -> list[Replica]:
    kinds = draw(
        st.lists(st.tuples(st.sampled_from(["old", "new"]), st.sampled_from(STATES)), max_size=8)
    )
    return [replica(str(index), *kind) for index, kind in enumerate(kinds)]


@given(replicas(), st.integers(0, 5))
def test_readiness_is_never_reduced_below_the_request(found: list[Replica], wanted: int) -> None:
    result = changes("new", wanted, found)
    ready = [each for each in found if each.state == "ready"]
    left = [each for each in ready if each.name not in result.stop]
    assert len(left) >= min(wanted, len(ready))


@given(replicas(), st.integers(0, 5))
def test_a_replacement_has_no_more_processes_than_the_surge(
    found: list[Replica], wanted: int
) -> None:
    result = changes("new", wanted, found)
    running = [each for each in found if each.state != "stopping"]
    assert set(result.stop) <= {each.name for each in running}
    if result.create and any(each.template == "old" for each in running):
        left = [each for each in found if each.has_process or each.name not in result.stop]
        assert len(left) + result.create <= wanted + SURGE


def test_a_growing_service_does_not_wait_for_replicas_that_are_stopping() -> None:
    draining = [replica(name, state="stopping") for name in "abcd"]
    assert changes("new", 4, draining).create == 4
    assert changes("newer", 4, draining).create == 4


@given(replicas(), st.integers(0, 5))
def test_it_settles_at_the_request(found: list[Replica], wanted: int) -> None:
    """If all new replicas get ready, only they are left, as many as requested."""
    current, number = found, 100
    for _ in range(40):
        current = [
            each.model_copy(update={"state": "ready"}) if each.template == "new" else each
            for each in current
            if each.state != "stopping"
        ]
        result = changes("new", wanted, current)
        kept = [each for each in current if each.name not in result.stop]
        created = [replica(str(number + each), "new", "starting") for each in range(result.create)]
        number += result.create
        current = [*kept, *created]
    assert [each.template for each in current] == ["new"] * wanted
    assert changes("new", wanted, current) == changes("new", 0, [])


def test_replicas_that_are_not_ready_stop_first() -> None:
    found = [replica("a", state="starting"), replica("b"), replica("c", state="unready")]
    assert changes("new", 2, found).stop == ("a",)
    assert changes("new", 1, found).stop == ("c", "a")


def test_a_revision_that_never_gets_ready_stops_no_old_replica() -> None:
    old = [replica("a", "old"), replica("b", "old", "restarting")]
    assert changes("new", 2, old).create == 1
    found = [*old, replica("c", state="restarting")]
    assert changes("new", 2, found) == changes("new", 0, [])


def test_delays_between_restarts_grow_and_start_over() -> None:
    found: Replica | None = replica()
    delays = []
    for _ in range(10):
        assert found is not None
        found = ended(found, SPEC, "why", 100.0)
        assert found is not None
        assert (found.state, found.message) == ("restarting", "why")
        delays.append((found.due_at or 0.0) - 100.0)
        found = launched(found, {"http": "127.0.0.1:1"}, SPEC, 100.0)
        assert (found.due_at, found.status().restarts) == (105.0, len(delays))
    assert delays[:4] == [0.0, 1.0, 2.0, 4.0]
    assert delays[-1] == SPEC.restart_delay_s
    assert found is not None
    again = ended(checked(found, 0, 101.0), SPEC, "why", 101.0 + RESET_AFTER_S)
    assert again is not None
    assert again.due_at == again.since


@pytest.mark.parametrize(
    ("state", "lasted_s", "delay_s"),
    [
        ("ready", RESET_AFTER_S, 0.0),
        ("ready", RESET_AFTER_S - 1, 4.0),
        ("starting", RESET_AFTER_S, 4.0),
        ("unready", RESET_AFTER_S, 4.0),
    ],
)
def test_only_a_long_time_in_the_state_ready_resets_the_backoff(
    state: ReplicaState, lasted_s: float, delay_s: float
) -> None:
    found = ended(replica(state=state).model_copy(update={"in_a_row": 3}), SPEC, "why", lasted_s)
    assert found is not None
    assert found.due_at == lasted_s + delay_s


def test_readiness_follows_the_checks() -> None:
    found = replica(state="starting").model_copy(update={"due_at": 5.0})
    assert checked(found, FAILURES, 1.0) == found
    ready = checked(found, 0, 1.0)
    assert (ready.state, ready.since, ready.due_at) == ("ready", 1.0, None)
    assert checked(ready, FAILURES - 1, 2.0) == ready
    assert checked(ready, FAILURES, 2.0).state == "unready"
    leaving = stopping(ready, SPEC, 2.0)
    assert leaving is not None
    assert (leaving.state, leaving.due_at) == ("stopping", 4.0)
    assert not leaving.is_signalled  # the caller sends the signal
    delayed = stopping(ready, SPEC.model_copy(update={"stop_delay_s": 3.0}), 2.0)
    assert delayed is not None
    assert delayed.due_at == 7.0
    assert checked(leaving, 0, 3.0) == leaving
    assert ended(leaving, SPEC, "why", 3.0) is None


def test_a_replica_without_a_process_stops_at_once() -> None:
    assert stopping(replica(state="restarting"), SPEC, 0.0) is None


def test_a_deadline_of_a_clock_that_was_ahead_is_moved() -> None:
    spec = ServiceSpec(name="web", module="m", start_timeout_s=90)
    waiting = Replica(name="web-1-1", revision=1, template=spec.template, since=0, due_at=1e6)
    assert adopted(waiting, spec, 100.0).due_at == 190.0
    soon = waiting.model_copy(update={"due_at": 150.0})
    assert adopted(soon, spec, 100.0) == soon
