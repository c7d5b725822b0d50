from __future__ import annotations

import errno
import os
import signal
import threading
from typing import Any, Literal

import pytest

from timonel.engines import FailureCause, JobSpec, RoleSpec
from timonel.engines.agent.client import Demand
from timonel.engines.agent.messages import StartOrder
from timonel.engines.coordination.failures import TaskExit, TaskReport
from timonel.errors import Interrupted, JobError
from timonel.storage import Workspace
from timonel.tracking import RunRecord, open_run, read_run, start_run
from timonel.tracking.events import EventReader
from timonel.training import foreground
from timonel.training.cluster import Cluster

TASKS = {"chief": ("a:1",), "worker": ("b:1",)}
REPORT = TaskReport(FailureCause.USER_ERROR, "ZeroDivisionError: division by zero", "Traceback")


@pytest.fixture(autouse=True)
def no_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "mirror_in_background", lambda _workspace: None)


@pytest.fixture
def run(workspace: Workspace) -> str:
    return start_run(workspace, "train", run_id="train-1").run_id


def run_here(workspace: Workspace, role: str = "chief", *, serves: bool = False) -> None:
    spec = JobSpec(
        job_id="train-1",
        module="m",
        roles=(RoleSpec(name=role, essential=role != "evaluator"),),  # type: ignore[arg-type] # a role
        env={"LEARNING": "fast"},
        source="/",
    )
    foreground.run_here(workspace, spec, Cluster(TASKS, role, 0), serves=serves)


def record_of(workspace: Workspace) -> RunRecord:
    return read_run(workspace, "train-1")


class Agent:
    """Stands in for the agent: notes the order, and ends the task as told."""

    def __init__(self, task_exit: TaskExit, *signals: int) -> None:
        self.task_exit = task_exit
        self.signals = signals
        self.demands: list[Demand] = []
        self.orders: list[StartOrder] = []

    def __call__(self, order: StartOrder, **given: Any) -> TaskExit:
        self.orders.append(order)
        for number in self.signals:
            os.kill(os.getpid(), number)
        self.demands.append(given["demand"]())
        return self.task_exit


@pytest.mark.parametrize(
    ("task_exit", "code", "status", "words"),
    [
        (
            TaskExit(exit_code=1, report=REPORT),
            1,
            "failed",
            "chief-0 failed: error in the script: Zero.* is above",
        ),
        (TaskExit(exit_code=3), 3, "failed", "ended with exit code 3"),
        (TaskExit(signal=9, oom_killed=True), 137, "failed", "because memory ran out"),
        (
            TaskExit(exit_code=75),
            75,
            "running",
            "exit code 75, which asks for a restart: .*train-1 continues from its last",
        ),
        (
            TaskExit(signal=9),
            137,
            "running",
            "chief-0 was ended by signal 9 .*train-1 continues from its last checkpoint",
        ),
        (TaskExit(signal=9, hung="no sign of life"), 137, "running", "hung: .* continues"),
        (TaskExit(agent_lost=True), 75, "running", "the agent of chief-0 died: .* continues"),
    ],
)
def test_the_exit_of_a_task_that_failed(
    task_exit: TaskExit,
    code: int,
    status: str,
    words: str,
    workspace: Workspace,
    run: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreground, "run_task", Agent(task_exit))
    with pytest.raises(JobError, match=words) as caught:
        run_here(workspace)
    assert caught.value.exit_code == code
    assert record_of(workspace).status == status


@pytest.mark.parametrize(("role", "status"), [("chief", "succeeded"), ("worker", "running")])
def test_the_run_ends_with_its_chief(
    role: str, status: str, workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreground, "run_task", Agent(TaskExit(exit_code=0)))
    run_here(workspace, role)
    assert record_of(workspace).status == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_from_outside_leaves_the_run_open(
    number: signal.Signals, workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # with nohup, SIGHUP is ignored
    killed_early = Agent(TaskExit(signal=signal.SIGTERM), number)
    monkeypatch.setattr(foreground, "run_task", killed_early)
    with pytest.raises(JobError) as caught:
        run_here(workspace)
    assert (caught.value.exit_code, killed_early.demands) == (75, [Demand.STOP])
    assert record_of(workspace).status == "running"
    assert signal.signal(number, before) is signal.SIG_DFL


def test_a_closed_terminal_does_not_matter_with_nohup(
    workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(TaskExit(exit_code=0), signal.SIGHUP)
    monkeypatch.setattr(foreground, "run_task", agent)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run_here(workspace)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert agent.demands == [Demand.CONTINUE]


@pytest.mark.parametrize(
    ("signals", "demand"),
    [
        ((signal.SIGINT,), Demand.STOP),
        ((signal.SIGINT, signal.SIGTERM), Demand.STOP),  # as mpirun passes on Ctrl-C
        ((signal.SIGINT, signal.SIGINT), Demand.KILL),
    ],
)
def test_an_interrupt_stops_the_run(
    signals: tuple[int, ...],
    demand: Demand,
    workspace: Workspace,
    run: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Agent(TaskExit(exit_code=75), *signals)
    monkeypatch.setattr(foreground, "run_task", agent)
    with pytest.raises(Interrupted, match="train-1 has stopped"):
        run_here(workspace, "worker")
    assert agent.demands == [demand]
    assert record_of(workspace).status == "stopped"


def test_a_serving_task_ends_with_the_run(
    workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(TaskExit(signal=signal.SIGKILL))  # it took too long
    monkeypatch.setattr(foreground, "run_task", agent)
    with pytest.raises(JobError):
        run_here(workspace, "worker", serves=True)
    open_run(workspace, run).finish("succeeded")
    run_here(workspace, "worker", serves=True)
    assert agent.demands == [Demand.CONTINUE, Demand.STOP_UNSAVED]


@pytest.mark.parametrize(
    ("end", "demand"), [("succeeded", Demand.CONTINUE), ("failed", Demand.STOP)]
)
def test_all_tasks_stop_with_a_run_that_has_failed(
    end: Literal["succeeded", "failed"],
    demand: Demand,
    workspace: Workspace,
    run: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_run(workspace, run).finish(end, "worker-1 failed")
    agent = Agent(TaskExit(exit_code=75))
    monkeypatch.setattr(foreground, "run_task", agent)
    with pytest.raises(JobError, match=rf"exit code 75, .*: train-1 has ended \({end}\)") as caught:
        run_here(workspace, "worker")
    assert (caught.value.exit_code, agent.demands) == (75, [demand])


def test_a_task_goes_on_while_the_shared_folder_is_away(
    workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_reader: EventReader) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    agent = Agent(TaskExit(exit_code=0))
    monkeypatch.setattr(foreground, "run_task", agent)
    monkeypatch.setattr(foreground.EventReader, "read", fail)
    run_here(workspace, "worker")
    assert agent.demands == [Demand.CONTINUE]


def test_a_run_goes_on_without_its_evaluator(
    workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreground, "run_task", Agent(TaskExit(exit_code=1, report=REPORT)))
    with pytest.raises(
        JobError, match=r"evaluator-0 failed: error in the script: .* traceback is above"
    ):
        run_here(workspace, "evaluator")
    monkeypatch.setattr(foreground, "run_task", Agent(TaskExit(exit_code=75), signal.SIGINT))
    with pytest.raises(Interrupted, match="evaluator-0 has stopped: train-1 goes on"):
        run_here(workspace, "evaluator")
    assert record_of(workspace).status == "running"


def test_each_start_of_a_task_is_a_generation(
    workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    agent = Agent(TaskExit(exit_code=0))
    monkeypatch.setattr(foreground, "run_task", agent)
    for role in ("worker", "worker", "evaluator"):
        run_here(workspace, role)
    assert [order.generation for order in agent.orders] == [1, 2, 1]
    job_dir = workspace.jobs / "train-1"
    assert agent.orders[0].task_dir == job_dir / "tasks" / "worker-0"
    assert agent.orders[0].log == job_dir / "logs" / "worker-0.log"
    assert agent.orders[0].env["LEARNING"] == "fast"
    # TensorFlow would have an evaluator join the cluster.
    assert ["TF_CONFIG" in order.env for order in agent.orders] == [True, True, False]


def test_a_task_of_another_thread(
    workspace: Workspace, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreground, "run_task", Agent(TaskExit(exit_code=0)))
    thread = threading.Thread(target=run_here, args=(workspace,))
    thread.start()
    thread.join(30)
    assert record_of(workspace).status == "succeeded"
