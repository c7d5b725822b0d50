"""What a coordinator knows, is told, and asks for: the values of `timonel.engines.coordinator`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from timonel.engines.base import JobStatus
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
    """All that the coordinator knows; `wake_at` is when it wants a `Tick` at the latest."""

    spec: JobSpec
    status: JobStatus
    phase: Phase = Phase.NEW
    history: RestartHistory = field(default_factory=RestartHistory)
    failures: tuple[Failure, ...] = ()
    progress: float | None = None
    stop_requested: bool = False
    wake_at: float | None = None


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


@dataclass(frozen=True)
class TaskReady:
    """A task reported that it is up."""

    task_id: str
    generation: int


@dataclass(frozen=True)
class TaskExited:
    """A task's process, and all it had started, is gone."""

    task_id: str
    generation: int
    exit: TaskExit


@dataclass(frozen=True)
class StartFailed:
    """A generation could not be started for a reason of the engine's own."""

    generation: int
    message: str


@dataclass(frozen=True)
class StopRequested:
    """The user wants the job to end."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Begin | TaskStarted | TaskReady | TaskExited | StartFailed | StopRequested | Tick


@dataclass(frozen=True)
class StartGeneration:
    """Start every task, all under this generation."""

    generation: int


@dataclass(frozen=True)
class StopTasks:
    """Ask these tasks to end, and kill them after the grace."""

    generation: int
    task_ids: tuple[str, ...]
    grace_s: float


@dataclass(frozen=True)
class KillTasks:
    """Kill these tasks with their agents, which did not answer; nothing more is awaited of them."""

    generation: int
    task_ids: tuple[str, ...]


Action = StartGeneration | StopTasks | KillTasks
Step = tuple[State, tuple[Action, ...]]
