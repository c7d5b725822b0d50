"""What an engine is: where jobs run.

An engine knows processes, roles, addresses and exit codes. It knows nothing of TensorFlow: what
every task runs is ``python -m <module> <args>``, and what a warm parent should have imported is a
field of the specification.

Three kinds of values are kept apart: what was asked for (`JobSpec`), what is observed
(`JobStatus`, `TaskStatus`), and what came of a failure (`FailureCause`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from timonel.units import Seconds

EXIT_DONE = 0
EXIT_RETRYABLE = 75
"""A task that ended because of something outside itself (EX_TEMPFAIL in sysexits.h)."""

RoleName = Literal["chief", "worker", "ps", "evaluator"]


class JobState(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}


class FailureCause(StrEnum):
    """Why a task or a job ended without success; it decides whether it is tried again."""

    USER_ERROR = "user-error"
    LOST_PEER = "lost-peer"
    PREEMPTED = "preempted"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out-of-memory"
    START_TIMEOUT = "start-timeout"
    STOPPED = "stopped"
    ENGINE = "engine"


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleSpec(_Spec):
    """So many equal tasks of one role."""

    name: RoleName = Field(description="The role's name, as in TF_CONFIG.")
    replicas: int = Field(default=1, ge=1, description="How many tasks have this role.")
    env: Mapping[str, str] = Field(
        default_factory=dict, description="Environment of this role's tasks, over the job's."
    )


class RestartPolicy(_Spec):
    """How often and how fast a job is started again."""

    max_restarts: int = Field(default=3, ge=0, description="Restarts before the job fails.")
    backoff_s: Seconds = Field(default=1.0, description="Delay before the first restart.")
    backoff_max_s: Seconds = Field(default=30.0, description="The longest delay, after doubling.")


class CommandSpec(_Spec):
    """A command beside a job: ``python -m <module> <args>`` on the coordinator."""

    module: str = Field(description="The Python module to run.")
    args: tuple[str, ...] = Field(default=(), description="Its arguments.")
    patience_s: Seconds = Field(
        default=15.0, description="Time a sidecar has to end by itself after the job's end."
    )


class JobSpec(_Spec):
    """What is asked of an engine: tasks by role, all of one program."""

    job_id: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="Unique name.")
    module: str = Field(description="The Python module each task runs with -m.")
    args: tuple[str, ...] = Field(default=(), description="Arguments of every task.")
    roles: tuple[RoleSpec, ...] = Field(min_length=1, description="Roles; the first one leads.")
    env: Mapping[str, str] = Field(default_factory=dict, description="Environment of every task.")
    working_dir: str = Field(description="The folder in which tasks run.")
    job_dir: str = Field(description="The job's folder, which the engine makes and owns.")
    preload: tuple[str, ...] = Field(
        default=(), description="Modules a warm parent has imported before it forks tasks."
    )
    restart: RestartPolicy = Field(default_factory=RestartPolicy, description="Restart policy.")
    start_timeout_s: Seconds = Field(
        default=180.0, description="Time for all tasks of a generation to report ready."
    )
    stop_grace_s: Seconds = Field(default=20.0, description="Time from SIGTERM to SIGKILL.")
    sidecars: tuple[CommandSpec, ...] = Field(
        default=(), description="Commands that run beside the job; they do not decide its end."
    )
    epilogue: CommandSpec | None = Field(
        default=None, description="Run once by the coordinator after the job ended, however it did."
    )

    @field_validator("roles")
    @classmethod
    def _roles_are_distinct(cls, roles: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
        names = [role.name for role in roles]
        if len(set(names)) != len(names):
            raise ValueError(f"expected each role once, got {names}")
        return roles

    @property
    def size(self) -> int:
        """The number of tasks of all roles."""
        return sum(role.replicas for role in self.roles)

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The names of all tasks, such as ``worker-1``, role by role."""
        return tuple(
            f"{role.name}-{index}" for role in self.roles for index in range(role.replicas)
        )


class _Observed(BaseModel):
    # A newer engine may write more than this release knows.
    model_config = ConfigDict(frozen=True, extra="ignore")


class TaskStatus(_Observed):
    """What is known of one task."""

    role: str
    index: int
    state: Literal["pending", "starting", "running", "succeeded", "failed", "stopped"] = "pending"
    generation: int = 0
    pid: int | None = None
    address: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    cause: FailureCause | None = None
    message: str | None = None

    @property
    def task_id(self) -> str:
        """The task's name within its job, such as ``worker-1``."""
        return f"{self.role}-{self.index}"


class JobStatus(_Observed):
    """What is known of a job."""

    job_id: str
    state: JobState = JobState.PENDING
    generation: int = 0
    restarts: int = 0
    cause: FailureCause | None = None
    message: str | None = None
    failed_task: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    tasks: tuple[TaskStatus, ...] = ()

    @classmethod
    def of(cls, spec: JobSpec, created_at: float) -> JobStatus:
        """Return the status of a job that was just accepted."""
        tasks = tuple(
            TaskStatus(role=role.name, index=index)
            for role in spec.roles
            for index in range(role.replicas)
        )
        return cls(job_id=spec.job_id, created_at=created_at, tasks=tasks)


class LogLine(_Observed):
    """One line of one task's output, without its line feed."""

    task_id: str
    text: str


class Engine(abc.ABC):
    """Where jobs run: four verbs.

    Implementations are safe to use from several processes at once: all state is the engine's.
    """

    name: str

    @abc.abstractmethod
    def submit(self, spec: JobSpec) -> None:
        """Start a job and return once it is accepted, not once it runs.

        Raises:
            AlreadyExistsError: A job of that id exists.
            EngineError: The engine cannot start it.
        """

    @abc.abstractmethod
    def status(self, job_id: str) -> JobStatus:
        """Return what is known of a job now, without blocking.

        Raises:
            NotFoundError: There is no such job.
        """

    @abc.abstractmethod
    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        """Yield the lines that tasks have written, oldest first within a task.

        Args:
            job_id: The job.
            task_id: One task such as ``chief-0``; all tasks without it.
            follow: Go on until the job has ended, instead of to what is there now.

        Raises:
            NotFoundError: There is no such job or task.
        """

    @abc.abstractmethod
    def cancel(self, job_id: str) -> None:
        """Ask a job to stop; return once the wish is recorded. Idempotent.

        The job ends as ``stopped``, after its tasks had ``stop_grace_s`` to end by themselves. A
        job that has ended stays as it is.

        Raises:
            NotFoundError: There is no such job.
        """

    @abc.abstractmethod
    def jobs(self) -> list[JobStatus]:
        """Return the status of every job of this engine, newest first."""
