from __future__ import annotations

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.coordination.strategies import failures, task_exits
from timonel.engines.base import FailureCause
from timonel.engines.coordination.failures import (
    Failure,
    TaskExit,
    TaskReport,
    classify,
    fail,
    parse_report,
    root_failure,
)

USER = TaskReport(FailureCause.USER_ERROR, "no such column")
LOST = TaskReport(FailureCause.LOST_PEER, "peer is gone")


@pytest.mark.parametrize(
    ("task_exit", "cause"),
    [
        (TaskExit(exit_code=0), None),
        (TaskExit(exit_code=1), FailureCause.USER_ERROR),
        (TaskExit(exit_code=200), FailureCause.USER_ERROR),
        (TaskExit(exit_code=75), FailureCause.LOST_PEER),
        (TaskExit(exit_code=134), FailureCause.CRASHED),
        (TaskExit(exit_code=137), FailureCause.CRASHED),
        (TaskExit(exit_code=139), FailureCause.CRASHED),
        (TaskExit(exit_code=143), FailureCause.PREEMPTED),
        (TaskExit(signal=signal.SIGABRT), FailureCause.CRASHED),
        (TaskExit(signal=signal.SIGKILL), FailureCause.CRASHED),
        (TaskExit(signal=signal.SIGKILL, oom_killed=True), FailureCause.OUT_OF_MEMORY),
        (TaskExit(exit_code=137, oom_killed=True), FailureCause.OUT_OF_MEMORY),
        (TaskExit(signal=signal.SIGABRT, oom_killed=True), FailureCause.CRASHED),
        (TaskExit(signal=signal.SIGTERM), FailureCause.PREEMPTED),
        (TaskExit(agent_lost=True), FailureCause.PREEMPTED),
        (TaskExit(exit_code=1, report=LOST), FailureCause.LOST_PEER),
        (TaskExit(exit_code=75, report=USER), FailureCause.USER_ERROR),
    ],
)
def test_an_exit_has_one_cause(task_exit: TaskExit, cause: FailureCause | None) -> None:
    assert classify(task_exit) is cause


@pytest.mark.parametrize(
    ("task_exit", "cause"),
    [
        (TaskExit(exit_code=0), None),
        (TaskExit(exit_code=1), FailureCause.STOPPED),
        (TaskExit(exit_code=75), FailureCause.STOPPED),
        (TaskExit(signal=signal.SIGTERM), FailureCause.STOPPED),
        (TaskExit(signal=signal.SIGKILL), FailureCause.STOPPED),
        (TaskExit(exit_code=1, report=LOST), FailureCause.STOPPED),
        (TaskExit(exit_code=1, report=USER), FailureCause.USER_ERROR),
        (TaskExit(signal=signal.SIGKILL, oom_killed=True), FailureCause.OUT_OF_MEMORY),
    ],
)
def test_while_stopping_only_roots_count(task_exit: TaskExit, cause: FailureCause | None) -> None:
    assert classify(task_exit, stopping=True) is cause


@pytest.mark.parametrize(
    ("task_exit", "message"),
    [
        (TaskExit(exit_code=1, report=USER), "no such column"),
        (TaskExit(exit_code=3), "worker-0 ended with exit code 3"),
        (TaskExit(exit_code=75), "worker-0 ended with exit code 75, which asks for a restart"),
        (TaskExit(agent_lost=True), "the agent of worker-0 died"),
        (
            TaskExit(signal=signal.SIGKILL, hung="no step for 600 s"),
            "worker-0 hung: no step for 600 s",
        ),
        (
            TaskExit(signal=signal.SIGKILL, oom_killed=True),
            "worker-0 was killed by the kernel because memory ran out",
        ),
        (
            TaskExit(exit_code=137, oom_killed=True),
            "worker-0 was killed by the kernel because memory ran out",
        ),
        (TaskExit(signal=signal.SIGKILL), "worker-0 was ended by signal 9 (SIGKILL)"),
        (
            TaskExit(signal=signal.SIGABRT, oom_killed=True),
            "worker-0 was ended by signal 6 (SIGABRT)",
        ),
        (TaskExit(signal=99), "worker-0 was ended by signal 99 (unknown)"),
    ],
)
def test_a_failure_says_what_happened(task_exit: TaskExit, message: str) -> None:
    failure = fail("worker-0", task_exit)
    assert failure is not None
    assert failure.message == message


@given(task_exits, st.booleans())
def test_only_a_bare_zero_is_success(task_exit: TaskExit, stopping: bool) -> None:
    succeeded = task_exit.exit_code == 0
    failure = fail("worker-0", task_exit, stopping=stopping)
    assert (failure is None) == succeeded
    assert failure is None or failure.message


@given(st.lists(failures, max_size=6))
def test_the_root_is_one_of_the_failures(seen: list[Failure]) -> None:
    root = root_failure(seen)
    assert root in seen if seen else root is None


@given(st.lists(failures, max_size=4), st.lists(failures, max_size=4))
def test_a_reported_user_error_beats_lost_peers(
    before: list[Failure], after: list[Failure]
) -> None:
    reported = Failure("worker-9", FailureCause.USER_ERROR, "no such column", reported=True)
    root = root_failure([*before, reported, *after])
    assert root is not None
    assert root.cause in {FailureCause.USER_ERROR, FailureCause.OUT_OF_MEMORY}
    strong = [f for f in before if f.cause is FailureCause.OUT_OF_MEMORY or f.reported]
    if not any(f.cause in {FailureCause.USER_ERROR, FailureCause.OUT_OF_MEMORY} for f in strong):
        assert root == reported


def test_the_first_of_equals_is_the_root() -> None:
    killed = Failure("worker-1", FailureCause.CRASHED, "killed")
    followed = Failure("worker-0", FailureCause.USER_ERROR, "raised UnavailableError")
    assert root_failure([killed, followed]) == killed
    assert root_failure([followed, killed]) == followed


def test_a_lack_of_memory_is_the_root_of_an_earlier_crash() -> None:
    crashed = Failure("worker-1", FailureCause.CRASHED, "killed")
    no_memory = Failure("worker-0", FailureCause.OUT_OF_MEMORY, "memory ran out")
    assert root_failure([crashed, no_memory]) == no_memory


def test_a_lost_peer_is_the_root_of_a_stop() -> None:
    stopped = Failure("worker-1", FailureCause.STOPPED, "asked to stop")
    lost = Failure("worker-0", FailureCause.LOST_PEER, "peer is gone")
    assert root_failure([stopped, lost]) == lost


@given(st.text())
def test_any_text_may_be_offered_as_a_report(text: str) -> None:
    report = parse_report(text)
    assert report is None or isinstance(report.cause, FailureCause)


@given(st.sampled_from(FailureCause), st.text(min_size=1), st.none() | st.text())
def test_a_report_is_read_as_written(
    cause: FailureCause, message: str, traceback: str | None
) -> None:
    text = json.dumps({"cause": cause, "message": message, "traceback": traceback})
    assert parse_report(text) == TaskReport(cause, message, traceback)


@pytest.mark.parametrize("text", ["", "[]", "null", "3", '{"cause": "weather"}', '{"cause": []}'])
def test_what_is_no_report_is_none(text: str) -> None:
    assert parse_report(text) is None
