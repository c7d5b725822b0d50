"""What a coordinator knows, is told, and asks for: the values of `timonel.engines.coordinator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from timonel.engines.base import JobStatus
from timonel.engines.elastic import Slots
from timonel.engines.failures import Failure, TaskExit
from timonel.engines.restarts import RestartHistory
from timonel.engines.spec import JobSpec


class Phase(StrEnum):
    """Where the coordinator is; finer than `JobState`."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(frozen=True)
class State:
    """All that the coordinator knows.

    Attributes:
        spec: What was asked for.
        status: What is published.
        phase: Where the job is.
        history: What restarts of the whole job have been used up by.
        task_histories: The same of tasks that are restarted in place, by task.
        failures: Those of this generation, in the order in which they were seen.
        progress: How far this generation has come, if it said so.
        slots: What is wished for and left out of elastic roles.
        stop_requested: Whether the user wants the job to end.
        resizing: Whether this generation was asked to leave for one of another size.
        running_since: When all tasks of this generation were ready.
        ready_at: When each task of this generation was ready.
        draining_since: When this generation began to end.
        deadline: When the phase ends by itself.
        timers: For tasks that are restarted in place, when the next attempt begins, or by when it
            must be ready.
    """

    spec: JobSpec
    status: JobStatus
    phase: Phase = Phase.NEW
    history: RestartHistory = field(default_factory=RestartHistory)
    task_histories: Mapping[str, RestartHistory] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    progress: float | None = None
    slots: Slots = field(default_factory=Slots)
    stop_requested: bool = False
    resizing: bool = False
    running_since: float | None = None
    ready_at: Mapping[str, float] = field(default_factory=dict)
    draining_since: float | None = None
    deadline: float | None = None
    timers: Mapping[str, float] = field(default_factory=dict)

    @property
    def wake_at(self) -> float | None:
        """When the coordinator wants a `Tick` at the latest."""
        if self.phase is Phase.ENDED:
            return None
        times = [self.deadline, *self.timers.values()]
        if self.phase is Phase.RUNNING:
            times.append(self.slots.wake_at)
        return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True)
class Begin:
    """The job may start."""


@dataclass(frozen=True)
class TaskStarted:
    """A task's process runs."""

    task_id: str
    generation: int
    pid: int
    address: str | None = None
    attempt: int = 1


@dataclass(frozen=True)
class TaskReady:
    """A task reported that it is up."""

    task_id: str
    generation: int
    attempt: int = 1


@dataclass(frozen=True)
class TaskExited:
    """A task's process, and all it had started, is gone."""

    task_id: str
    generation: int
    exit: TaskExit
    attempt: int = 1


@dataclass(frozen=True)
class StartFailed:
    """A generation could not be started for a reason of the engine's own."""

    generation: int
    message: str


@dataclass(frozen=True)
class StopRequested:
    """The user wants the job to end."""


@dataclass(frozen=True)
class ScaleRequested:
    """The user wants so many tasks of some elastic roles."""

    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Begin
    | TaskStarted
    | TaskReady
    | TaskExited
    | StartFailed
    | StopRequested
    | ScaleRequested
    | Tick
)


@dataclass(frozen=True)
class StartGeneration:
    """Start so many tasks of each role, all under this generation, with new addresses."""

    generation: int
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class StartTask:
    """Start one task of this generation again, on its address."""

    generation: int
    task_id: str
    attempt: int


@dataclass(frozen=True)
class StopTasks:
    """Ask these tasks to end, and kill them after the grace.

    Attributes:
        urgent: There is nothing left to do for them: they are told twice, and one that does not
            answer to anything is killed at once.
    """

    generation: int
    task_ids: tuple[str, ...]
    grace_s: float
    urgent: bool = False


@dataclass(frozen=True)
class KillTasks:
    """Kill these tasks with their agents, which did not answer; nothing more is awaited of them."""

    generation: int
    task_ids: tuple[str, ...]


Action = StartGeneration | StartTask | StopTasks | KillTasks
Step = tuple[State, tuple[Action, ...]]
