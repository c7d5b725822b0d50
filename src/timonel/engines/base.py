"""Engine interface, job and task statuses, and failure causes.

An engine manages processes, roles, addresses and exit codes, and does not depend on TensorFlow:
each task runs ``python -m <module> <args>``, and the modules that a zygote preloads are a
field of the specification.

Three kinds of values are separate: requested (`timonel.engines.spec.JobSpec`), observed
(`JobStatus`, `TaskStatus`), and the cause of a failure (`FailureCause`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from timonel.engines.resources import Observed
from timonel.engines.spec import JobSpec, RoleSpec
from timonel.storage.workspace import Workspace

EXIT_DONE = 0
EXIT_RETRYABLE = 75
"""Exit code for external failures (EX_TEMPFAIL in sysexits.h)."""


class JobState(StrEnum):
    """State of a job."""

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

    @property
    def phrase(self) -> str:
        """State in a sentence: ``has failed``, ``is running``."""
        return f"{'has' if self.is_final else 'is'} {self.value}"


class FailureCause(StrEnum):
    """Why a task or job failed; it determines whether it restarts."""

    USER_ERROR = "user-error"
    LOST_PEER = "lost-peer"
    PREEMPTED = "preempted"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out-of-memory"
    START_TIMEOUT = "start-timeout"
    HUNG = "hung"
    TIME_LIMIT = "time-limit"
    STOPPED = "stopped"
    ENGINE = "engine"


TaskState = Literal[
    "pending", "starting", "running", "restarting", "succeeded", "failed", "stopped"
]
"""State of a task.

``restarting``: it has ended and waits for its next attempt.
"""


class TaskStatus(Observed):
    """Observed status of a task."""

    role: str
    index: int
    state: TaskState = "pending"
    generation: int = 0
    attempt: int = 1
    """Number of starts within the generation, from 1."""
    pid: int | None = None
    address: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    cause: FailureCause | None = None
    message: str | None = None

    @property
    def task_id(self) -> str:
        """Task name within the job, such as ``worker-1``."""
        return f"{self.role}-{self.index}"


class RoleSize(Observed):
    """Current and requested size of an elastic role.

    Attributes:
        role: Name of the role.
        now: Current number of tasks.
        requested: Requested number of tasks.
        least: Minimum number of tasks.
        most: Maximum number of tasks.
        serves: Its tasks serve other roles, and stop after them.
    """

    role: str
    now: int
    requested: int
    least: int
    most: int
    serves: bool = False

    @classmethod
    def of(cls, role: RoleSpec, now: int, requested: int | None = None) -> RoleSize:
        """Return the size of a role; ``requested`` defaults to the maximum."""
        return cls(
            role=role.name,
            now=now,
            requested=role.replicas if requested is None else requested,
            least=role.least,
            most=role.replicas,
            serves=role.serves,
        )


class JobStatus(Observed):
    """Observed status of a job."""

    job_id: str
    state: JobState = JobState.PENDING
    generation: int = 0
    restarts: int = 0
    cause: FailureCause | None = None
    message: str | None = None
    failed_task: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    stops_at: float | None = None
    """When it reaches its maximum run time, if it has one and has run."""
    ended_at: float | None = None
    tasks: tuple[TaskStatus, ...] = ()
    """Tasks of the current generation."""
    sizes: tuple[RoleSize, ...] = ()
    """Sizes of elastic roles."""
    machine: str | None = None
    """Other machine that runs the job, of which only its run is known here."""

    @classmethod
    def of(cls, spec: JobSpec, created_at: float) -> JobStatus:
        """Return the initial status of an accepted job."""
        tasks = tuple(
            TaskStatus(role=role.name, index=index)
            for role in spec.roles
            for index in range(role.replicas)
        )
        sizes = tuple(RoleSize.of(role, role.replicas) for role in spec.roles if role.is_elastic)
        return cls(job_id=spec.job_id, created_at=created_at, tasks=tasks, sizes=sizes)

    def resumed(self) -> Self:
        """Return the status of a job that is about to resume."""
        cleared = dict.fromkeys(("cause", "message", "failed_task", "ended_at", "stops_at"))
        return self.model_copy(update={"state": JobState.PENDING, **cleared})

    def restarted(self, message: str) -> Self:
        """Return the status of a job that continues under a new supervisor."""
        return self.resumed().model_copy(
            update={
                "state": JobState.RESTARTING,
                "restarts": self.restarts + 1,
                "stops_at": self.stops_at,
                "cause": FailureCause.ENGINE,
                "message": message,
            }
        )


class LogLine(Observed):
    """A line of a task's output, without the line feed."""

    task_id: str
    text: str


class Engine(abc.ABC):
    """Interface of an engine: submit, status, logs, cancel and list jobs.

    Implementations may be used by several processes at once: the engine holds all state.
    """

    name: str
    shares_machine: bool = False
    """Whether tasks run on the machine that submits them: on its cores and devices, with its files
    and installed packages.
    """

    @classmethod
    @abc.abstractmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the engine of a workspace's jobs."""

    def sees(self, path: Path) -> bool:
        """Return whether tasks see a path of this machine, with the same files."""
        del path
        return self.shares_machine

    @abc.abstractmethod
    def submit(self, spec: JobSpec) -> None:
        """Start a job; return when it is accepted, before it runs.

        Raises:
            AlreadyExistsError: A job of that id exists.
            EngineError: The engine cannot start it.
        """

    @abc.abstractmethod
    def status(self, job_id: str) -> JobStatus:
        """Return the current status of a job, without blocking.

        Raises:
            NotFoundError: No such job.
        """

    @abc.abstractmethod
    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        """Yield lines of task output, oldest first within each task.

        Args:
            job_id: Job ID.
            task_id: A task such as ``chief-0``; None: all tasks.
            follow: Continue until the job ends, instead of stopping at the current end of the logs.

        Raises:
            NotFoundError: No such job or task.
        """

    @abc.abstractmethod
    def cancel(self, job_id: str) -> None:
        """Request that a job stops; return when the request is recorded. Idempotent.

        Tasks have ``stop_grace_s`` to exit; the job then ends as ``stopped``. A job that has ended
        does not change.

        Raises:
            NotFoundError: No such job.
        """

    @abc.abstractmethod
    def jobs(self) -> list[JobStatus]:
        """Return the status of every job of this engine, newest first.

        Unreadable jobs, such as those of a newer release, are skipped and logged.
        """

    def job_ids(self) -> list[str]:
        """Return the IDs of all jobs of this engine, sorted; also of unreadable ones, if it can."""
        return sorted(status.job_id for status in self.jobs())


class ElasticEngine(abc.ABC):
    """Optional interface of engines that can resize running jobs."""

    @abc.abstractmethod
    def scale(self, job_id: str, sizes: Mapping[str, int]) -> None:
        """Request new sizes of elastic roles; return when recorded. Idempotent.

        Tasks save their state and exit, and a generation of the new size continues from it. The
        request holds for all later generations.

        Args:
            job_id: Job ID.
            sizes: Number of tasks by role; other roles keep their size.

        Raises:
            NotFoundError: No such job.
            SpecError: A role is not elastic, or a number is out of its bounds.
            JobError: The job has ended.
        """


class ResumingEngine(abc.ABC):
    """Optional interface of engines that can resume ended jobs."""

    @abc.abstractmethod
    def resume(self, job_id: str) -> None:
        """Resume a failed or stopped job; return when accepted.

        It remains the same job: it continues with the next generation in the same folder, with a
        full restart budget. When it ends, its epilogue runs again.

        Raises:
            NotFoundError: No such job.
            JobError: The job has not ended, or has succeeded.
            EngineError: The engine cannot start it; the job is unchanged.
        """


class PreviewingEngine(abc.ABC):
    """Optional interface of engines whose jobs are objects of a cluster."""

    @abc.abstractmethod
    def preview(self, spec: JobSpec) -> list[dict[str, Any]]:
        """Return the objects that `Engine.submit` would create, without creating any.

        Raises:
            SpecError: The engine cannot run the job.
        """


class FileFetchingEngine(abc.ABC):
    """Optional interface of engines whose jobs have their folders on other machines."""

    @abc.abstractmethod
    def fetch(self, job_id: str, target: Path, selects: Callable[[str], bool]) -> None:
        """Copy files of a job's folder as they are now; only what has changed since the last call.

        Args:
            job_id: Job ID.
            target: Folder for the copies.
            selects: Tells by a file's name, relative to the job's folder, whether to copy it.

        Raises:
            InputError: They cannot be read, or the copies cannot be written.
        """
