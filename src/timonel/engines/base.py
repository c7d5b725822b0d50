"""What an engine is: where jobs run.

An engine knows processes, roles, addresses and exit codes. It knows nothing of TensorFlow: what
every task runs is ``python -m <module> <args>``, and what a warm parent should have imported is a
field of the specification.

Three kinds of values are kept apart: what was asked for (`timonel.engines.spec.JobSpec`), what is
observed (`JobStatus`, `TaskStatus`), and what came of a failure (`FailureCause`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from timonel.engines.spec import JobSpec, RoleSpec

EXIT_DONE = 0
EXIT_RETRYABLE = 75
"""A task that ended because of something outside itself (EX_TEMPFAIL in sysexits.h)."""


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
    HUNG = "hung"
    STOPPED = "stopped"
    ENGINE = "engine"


class _Observed(BaseModel):
    # A newer engine may write more than this release knows.
    model_config = ConfigDict(frozen=True, extra="ignore")


TaskState = Literal[
    "pending", "starting", "running", "restarting", "succeeded", "failed", "stopped"
]
"""Where a task is in its life; one that is restarting has ended and waits for its next attempt."""


class TaskStatus(_Observed):
    """What is known of one task."""

    role: str
    index: int
    state: TaskState = "pending"
    generation: int = 0
    attempt: int = 1
    """How often the task was started within its generation, counting from 1."""
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


class RoleSize(_Observed):
    """How large an elastic role is.

    Attributes:
        role: Its name.
        now: How many tasks it has.
        wished: How many it is to have.
        least: The fewest that it may have.
        most: The most.
        serves: Its tasks serve those of other roles, and are ended after them.
    """

    role: str
    now: int
    wished: int
    least: int
    most: int
    serves: bool = False

    @classmethod
    def of(cls, role: RoleSpec, now: int, wished: int | None = None) -> RoleSize:
        """Return the size of a role; all of it is wished for unless something else is."""
        return cls(
            role=role.name,
            now=now,
            wished=role.replicas if wished is None else wished,
            least=role.least,
            most=role.replicas,
            serves=role.serves,
        )


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
    """Those of the present generation."""
    sizes: tuple[RoleSize, ...] = ()
    """Those of elastic roles."""

    @classmethod
    def of(cls, spec: JobSpec, created_at: float) -> JobStatus:
        """Return the status of a job that was just accepted."""
        tasks = tuple(
            TaskStatus(role=role.name, index=index)
            for role in spec.roles
            for index in range(role.replicas)
        )
        sizes = tuple(RoleSize.of(role, role.replicas) for role in spec.roles if role.is_elastic)
        return cls(job_id=spec.job_id, created_at=created_at, tasks=tasks, sizes=sizes)


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


class ElasticEngine(abc.ABC):
    """What an engine can do beside its four verbs whose jobs may change their size."""

    @abc.abstractmethod
    def scale(self, job_id: str, sizes: Mapping[str, int]) -> None:
        """Wish for so many tasks of elastic roles; return once the wish is recorded. Idempotent.

        The tasks are asked to save and leave, and those of the new size go on from there. A wish
        holds for all generations to come.

        Args:
            job_id: The job.
            sizes: How many tasks, by role; other roles keep their size.

        Raises:
            NotFoundError: There is no such job.
            SpecError: A role is not elastic, or the number is out of its bounds.
            JobError: The job has ended.
        """


class ResumingEngine(abc.ABC):
    """What an engine can do beside its four verbs that keeps what it needs to start a job again."""

    @abc.abstractmethod
    def resume(self, job_id: str) -> None:
        """Start a job again that has failed or was stopped; return once that is accepted.

        As the same job: it goes on with the next generation, in the same folder, with its whole
        restart budget, and has an end again: its epilogue runs again too.

        Raises:
            NotFoundError: There is no such job.
            JobError: It has not ended, or has succeeded.
            EngineError: The engine cannot start it; the job is as it was.
        """
