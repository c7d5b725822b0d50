from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from timonel.engines import FailureCause
from timonel.engines.agent.messages import (
    AgentEvent,
    AgentOrder,
    StartOrder,
    StopOrder,
    decode_event,
    decode_order,
    encode,
    start_order,
)
from timonel.engines.cluster import TaskAssignment
from timonel.engines.coordination.failures import TaskExit, TaskReport
from timonel.engines.coordination.lifecycle import StartFailed, TaskExited, TaskReady, TaskStarted
from timonel.engines.spec import JobSpec, RoleSpec

START = StartOrder(
    task_id="worker-0",
    generation=2,
    attempt=1,
    module="m",
    args=("--spec", "a b"),
    env={"LATIN_1": "caf\udce9"},  # as Python reads bytes that are not UTF-8
    cwd="/caf\udce9",
    log=Path("/logs/caf\udce9.log"),
    task_dir=Path("/tasks/worker-0"),
    umask=0o077,
    hang_timeout_s=8.0,
)
REPORT = TaskReport(FailureCause.USER_ERROR, "division by zero", "Traceback ...\n")


@pytest.mark.parametrize("order", [START, StopOrder(2, 1, 20.0, urgent=True)])
def test_an_order_arrives_as_it_was_sent(order: AgentOrder) -> None:
    assert decode_order(json.loads(json.dumps(encode(order)))) == order


@pytest.mark.parametrize(
    "event",
    [
        TaskStarted("worker-0", 2, 4711),
        TaskReady("worker-0", 2, 3),
        StartFailed(2, "cannot start worker-0: no space left"),
        TaskExited("worker-0", 2, TaskExit(exit_code=1, report=REPORT, progress=3.5)),
        TaskExited("worker-0", 2, TaskExit(signal=9, oom_killed=True, hung="no sign of life")),
    ],
)
def test_an_event_arrives_as_it_was_sent(event: AgentEvent) -> None:
    assert decode_event(json.loads(json.dumps(encode(event)))) == event


def test_a_start_order_has_the_timeouts_of_the_role(tmp_path: Path) -> None:
    roles = (RoleSpec(name="chief"), RoleSpec(name="worker", replicas=2, on_loss="restart-task"))
    spec = JobSpec(
        job_id="j",
        module="m",
        args=("a",),
        roles=roles,
        hang_timeout_s=8.0,
        stall_timeout_s=60.0,
    )
    assignment = TaskAssignment(
        cluster={}, task={"type": "worker", "index": 1}, generation=3, attempt=2
    )
    before = os.umask(0o027)
    try:
        order = start_order(
            spec, assignment, env={"A": "b"}, cwd="/w", task_dir=tmp_path, log=tmp_path / "log"
        )
        assert os.umask(0o027) == 0o027  # unchanged
    finally:
        os.umask(before)
    assert (order.task_id, order.generation, order.attempt) == ("worker-1", 3, 2)
    assert (order.module, order.args, order.umask) == ("m", ("a",), 0o027)
    assert (order.hang_timeout_s, order.stall_timeout_s) == (6.0, 60.0)
