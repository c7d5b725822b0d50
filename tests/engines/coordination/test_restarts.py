from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.coordination.strategies import causes, policies
from timonel.engines.base import FailureCause
from timonel.engines.coordination.restarts import (
    NEVER_RETRIED,
    Loss,
    RestartDecision,
    RestartHistory,
    decide,
)
from timonel.engines.spec import RestartPolicy
from timonel.processes.backoff import backoff_s

histories = st.builds(
    RestartHistory,
    restarts=st.integers(0, 5),
    crashed=st.booleans(),
    crash_progress=st.none() | st.floats(0, 10),
)
progress = st.none() | st.floats(0, 10)


def decided(
    policy: RestartPolicy,
    history: RestartHistory,
    cause: FailureCause,
    progress: float | None = None,
    **facts: Any,
) -> RestartDecision:
    return decide(policy, history, Loss(cause, progress, **facts))


@given(policies, histories, st.sampled_from(sorted(NEVER_RETRIED)), progress)
def test_some_causes_are_never_retried(
    policy: RestartPolicy, history: RestartHistory, cause: FailureCause, at: float | None
) -> None:
    assert not decided(policy, history, cause, at).retry


@given(policies, st.lists(st.tuples(causes, progress), max_size=12))
def test_a_job_never_restarts_beyond_its_budget(
    policy: RestartPolicy, failures: list[tuple[FailureCause, float | None]]
) -> None:
    history = RestartHistory()
    policy = policy.model_copy(update={"reset_after_s": 1.0})
    for cause, at in failures:
        decision = decided(policy, history, cause, at, ran_s=0.9)
        assert decision.history.restarts == history.restarts + decision.retry
        history = decision.history
    assert history.restarts <= policy.max_restarts


@given(policies, st.integers(1, 5000))
def test_delays_grow_and_are_bounded(policy: RestartPolicy, restart: int) -> None:
    delay_s = backoff_s(restart, policy.backoff_s, policy.backoff_max_s)
    assert 0 <= delay_s <= policy.backoff_max_s
    assert delay_s <= backoff_s(restart + 1, policy.backoff_s, policy.backoff_max_s)


def test_delays_double() -> None:
    policy = RestartPolicy(max_restarts=9, backoff_s=1, backoff_max_s=5)
    delays = [backoff_s(n, policy.backoff_s, policy.backoff_max_s) for n in (1, 2, 3, 4, 5)]
    assert delays == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("cause", [FailureCause.CRASHED, FailureCause.START_TIMEOUT])
def test_what_may_be_chance_is_retried_once_per_point(cause: FailureCause) -> None:
    policy = RestartPolicy(max_restarts=9)
    first = decided(policy, RestartHistory(), cause, 10.0)
    assert first.retry
    again = decided(policy, first.history, cause, 10.0)
    assert (again.retry, again.reason) == (False, "it failed again at the same point")
    assert decided(policy, first.history, cause, 11.0).retry
    assert not decided(policy, first.history, cause, None).retry


def test_a_used_up_budget_is_said() -> None:
    policy = RestartPolicy(max_restarts=2)
    decision = decided(policy, RestartHistory(restarts=2), FailureCause.LOST_PEER)
    assert (decision.retry, decision.reason) == (False, "all 2 restarts are used up")


@pytest.mark.parametrize(
    ("progress", "ran_s", "retried"),
    [(11.0, 600.0, True), (11.0, 599.0, False), (10.0, 600.0, False), (None, 9999.0, False)],
)
def test_restarts_are_forgiven_to_those_that_ran_long_and_got_further(
    progress: float | None, ran_s: float, retried: bool
) -> None:
    policy = RestartPolicy(max_restarts=1, reset_after_s=600)
    history = decided(policy, RestartHistory(), FailureCause.PREEMPTED, 10.0).history
    decision = decided(policy, history, FailureCause.PREEMPTED, progress, ran_s=ran_s)
    assert decision.retry is retried
    assert decision.history.restarts == 1


def test_a_next_start_that_differs_is_no_repetition() -> None:
    policy = RestartPolicy(max_restarts=9)
    crashed = decided(policy, RestartHistory(), FailureCause.CRASHED, 10.0).history
    assert decided(policy, crashed, FailureCause.CRASHED, 10.0, next_start_differs=True).retry


def test_one_of_many_need_not_say_how_far_it_has_come() -> None:
    policy = RestartPolicy(max_restarts=1, reset_after_s=600)
    history = decided(policy, RestartHistory(), FailureCause.HUNG, is_single_task=True).history
    again = decided(policy, history, FailureCause.HUNG, ran_s=600, is_single_task=True)
    assert (again.retry, again.delay_s) == (True, 0.0)
    patient = policy.model_copy(update={"backoff_max_s": 1000})
    again = decided(patient, history, FailureCause.HUNG, ran_s=600, is_single_task=True)
    assert (again.retry, again.delay_s) == (True, 0.0)
    assert not decided(policy, history, FailureCause.HUNG, ran_s=599, is_single_task=True).retry


def test_delays_grow_for_those_that_get_no_further() -> None:
    policy = RestartPolicy(max_restarts=9, backoff_s=1)
    history, delays = RestartHistory(), []
    for progress in (None, 5.0, 6.0, 6.0, 6.0, 7.0):
        decision = decided(policy, history, FailureCause.PREEMPTED, progress)
        history = decision.history
        delays.append(decision.delay_s)
    assert delays == [0, 0, 0, 1, 2, 0]


@pytest.mark.parametrize("progress", [None, 0.0, 10.0])
def test_a_kill_is_no_repetition(progress: float | None) -> None:
    policy, history = RestartPolicy(max_restarts=3), RestartHistory()
    for _ in range(3):
        killed = decided(policy, history, FailureCause.CRASHED, progress, killed=True)
        assert killed.retry
        history = killed.history
    last = decided(policy, history, FailureCause.CRASHED, progress, killed=True)
    assert last.reason == "all 3 restarts are used up"


LOST = [{"cause": FailureCause.PREEMPTED}, {"cause": FailureCause.CRASHED, "killed": True}]


@pytest.mark.parametrize("loss", LOST)
def test_one_of_many_is_lost_however_often(loss: dict[str, Any]) -> None:
    policy, history = RestartPolicy(max_restarts=1, backoff_s=1, backoff_max_s=4), RestartHistory()
    delays = []
    for ran_s in (0.1, 0.1, 0.1, 0.1, 0.1, 4.0, 0.1):
        decision = decided(policy, history, **loss, is_single_task=True, ran_s=ran_s)
        assert decision.retry
        history = decision.history
        delays.append(decision.delay_s)
    assert delays == [0, 1, 2, 4, 4, 0, 1]


@pytest.mark.parametrize("loss", LOST)
def test_no_restarts_means_none(loss: dict[str, Any]) -> None:
    policy = RestartPolicy(max_restarts=0)
    assert not decided(policy, RestartHistory(), **loss, is_single_task=True).retry


def test_a_crash_that_is_long_ago_does_not_count() -> None:
    policy = RestartPolicy(max_restarts=1, reset_after_s=600)
    first = decided(policy, RestartHistory(), FailureCause.CRASHED, is_single_task=True)
    assert not decided(
        policy, first.history, FailureCause.CRASHED, is_single_task=True, ran_s=599
    ).retry
    assert decided(
        policy, first.history, FailureCause.CRASHED, is_single_task=True, ran_s=600
    ).retry
