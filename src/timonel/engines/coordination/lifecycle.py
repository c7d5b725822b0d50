"""States, events and actions of the coordinator, and queries of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from timonel.engines.base import FailureCause, JobState, JobStatus, TaskStatus
from timonel.engines.coordination.elastic import ElasticSlots
from timonel.engines.coordination.failures import Failure, TaskExit
from timonel.engines.coordination.restarts import RestartHistory
from timonel.engines.spec import JobSpec, RoleSpec


class CoordinatorPhase(StrEnum):
    """Phase of the coordinator; finer than `JobState`."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(frozen=True)
class CoordinatorState:
    """State of the coordinator.

    Attributes:
        spec: Requested job.
        status: Published status.
        phase: Phase of the job.
        history: Restarts of the whole job.
        task_histories: Restarts in place, by task.
        failures: Failures of this generation, in the order of detection.
        progress: Reported progress of this generation.
        slots: Slots of elastic roles.
        stop_cause: Why the job is to stop: the user asked for it, or its time is over.
        resizing: Whether this generation drains to change its size.
        running_since: Time when all tasks of this generation were ready.
        ready_at: Time when each task of this generation was ready.
        draining_since: Time when this generation began to drain.
        deadline: Time when the phase times out.
        timers: By task that restarts in place: the start of its next attempt, or the time by which
            that attempt must be ready.
    """

    spec: JobSpec
    status: JobStatus
    phase: CoordinatorPhase = CoordinatorPhase.NEW
    history: RestartHistory = field(default_factory=RestartHistory)
    task_histories: Mapping[str, RestartHistory] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    progress: float | None = None
    slots: ElasticSlots = field(default_factory=ElasticSlots)
    stop_cause: FailureCause | None = None
    resizing: bool = False
    running_since: float | None = None
    ready_at: Mapping[str, float] = field(default_factory=dict)
    draining_since: float | None = None
    deadline: float | None = None
    timers: Mapping[str, float] = field(default_factory=dict)

    @property
    def can_time_out(self) -> bool:
        """Whether the maximum run time still applies: not to a job that is about to end."""
        ends = self.phase is CoordinatorPhase.DRAINING and self.status.state is JobState.STOPPING
        return self.stop_cause is None and not ends

    @property
    def wake_at(self) -> float | None:
        """Latest time at which the coordinator needs a `Tick`."""
        if self.phase is CoordinatorPhase.ENDED:
            return None
        times = [self.deadline, *self.timers.values()]
        if self.can_time_out:
            times.append(self.status.stops_at)
        if self.phase is CoordinatorPhase.RUNNING:
            times.append(self.slots.wake_at)
        return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True)
class Begin:
    """Start the job."""


@dataclass(frozen=True)
class TaskStarted:
    """A task's process started."""

    task_id: str
    generation: int
    pid: int
    address: str | None = None
    attempt: int = 1


@dataclass(frozen=True)
class TaskReady:
    """A task reported ready."""

    task_id: str
    generation: int
    attempt: int = 1


@dataclass(frozen=True)
class TaskExited:
    """A task's process and its descendants are gone."""

    task_id: str
    generation: int
    exit: TaskExit
    attempt: int = 1


@dataclass(frozen=True)
class StartFailed:
    """The engine could not start a generation."""

    generation: int
    message: str


@dataclass(frozen=True)
class TasksPending:
    """Tasks of a starting generation have no machine yet: the start timeout begins again.

    Attributes:
        generation: The generation.
        message: What it waits for; the reason of its start once it waits for nothing.
    """

    generation: int
    message: str | None


@dataclass(frozen=True)
class TasksMissing:
    """Tasks of a generation have had no machine for so long that it need not wait for them.

    None of its tasks has started.
    """

    generation: int
    task_ids: tuple[str, ...]


@dataclass(frozen=True)
class StopRequested:
    """The user asked the job to stop."""


@dataclass(frozen=True)
class ScaleRequested:
    """The user requested sizes of elastic roles."""

    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Event = (
    Begin
    | TaskStarted
    | TaskReady
    | TaskExited
    | StartFailed
    | TasksPending
    | TasksMissing
    | StopRequested
    | ScaleRequested
    | Tick
)


@dataclass(frozen=True)
class StartGeneration:
    """Start a generation of these sizes, with new addresses."""

    generation: int
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class StartTask:
    """Restart a task of this generation at its address."""

    generation: int
    task_id: str
    attempt: int


@dataclass(frozen=True)
class StopTasks:
    """Ask tasks to exit, and kill them after the grace period.

    Attributes:
        urgent: The tasks have nothing left to save: they get a second SIGTERM, and an unresponsive
            task is killed at once.
    """

    generation: int
    task_ids: tuple[str, ...]
    grace_s: float
    urgent: bool = False


@dataclass(frozen=True)
class KillTasks:
    """Kill tasks and their unresponsive agents, without waiting for their exits."""

    generation: int
    task_ids: tuple[str, ...]


Action = StartGeneration | StartTask | StopTasks | KillTasks
Step = tuple[CoordinatorState, tuple[Action, ...]]

GONE = frozenset({"succeeded", "failed", "stopped"})
"""States of tasks that have ended for good in their generation."""


def task_of(state: CoordinatorState, task_id: str) -> TaskStatus | None:
    """Return a task of the current generation, or None."""
    return next((task for task in state.status.tasks if task.task_id == task_id), None)


def role_of(state: CoordinatorState, task: TaskStatus) -> RoleSpec:
    """Return the role of a task."""
    return next(role for role in state.spec.roles if role.name == task.role)


def with_task(state: CoordinatorState, task_id: str, /, **update: object) -> CoordinatorState:
    """Return the state with fields of a task updated."""
    tasks = tuple(
        task.model_copy(update=update) if task.task_id == task_id else task
        for task in state.status.tasks
    )
    return with_status(state, tasks=tasks)


def with_status(state: CoordinatorState, /, **update: object) -> CoordinatorState:
    """Return the state with fields of its status updated."""
    return replace(state, status=state.status.model_copy(update=update))


def alive(state: CoordinatorState) -> tuple[str, ...]:
    """Return the tasks that have a process or are being started."""
    return tuple(
        task.task_id for task in state.status.tasks if task.state not in {*GONE, "restarting"}
    )


def not_ready(state: CoordinatorState) -> tuple[str, ...]:
    """Return the tasks that have not reported ready."""
    waited_for = {"pending", "starting", "restarting"}
    return tuple(task.task_id for task in state.status.tasks if task.state in waited_for)


def is_done(state: CoordinatorState) -> bool:
    """Whether all tasks that end by themselves have ended.

    In a running generation, the job continues without failed tasks.
    """
    return all(task.state in {"succeeded", "failed"} for task in ending(state))


def ending(state: CoordinatorState) -> tuple[TaskStatus, ...]:
    """Return the tasks whose end is the end of the job.

    The leader if its success suffices, else all tasks that do not serve others.
    """
    if state.spec.success == "leader":
        return tuple(task for task in state.status.tasks if task.task_id == state.spec.task_ids[0])
    serving = {role.name for role in state.spec.roles if role.is_serving}
    alone = len(serving) == len(state.spec.roles)
    return tuple(task for task in state.status.tasks if alone or task.role not in serving)
