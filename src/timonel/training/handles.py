"""Handles on training runs and their jobs, for the control side: follow, scale, resume."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from timonel.engines import (
    ElasticEngine,
    Engine,
    FailureCause,
    JobState,
    JobStatus,
    LogLine,
    ResumingEngine,
    get_engine,
)
from timonel.errors import (
    EngineError,
    Interrupted,
    JobError,
    NotFoundError,
    SpecError,
    TimonelError,
    UserCodeError,
)
from timonel.storage import Workspace
from timonel.tracking import RunRecord, RunWriter, follow_events, open_run, read_run
from timonel.tracking.events import RESUME, Event
from timonel.tracking.writer import FinishStatus
from timonel.training.terminal import is_noise

if TYPE_CHECKING:
    from timonel.models import ModelVersion


def resume_job(workspace: Workspace, engine: Engine, job_id: str) -> None:
    """Continue a job and its run from its checkpoints; return once accepted.

    If the job cannot be started, job and run are unchanged.
    """
    if not isinstance(engine, ResumingEngine):
        raise SpecError(f"The engine {engine.name} cannot restart jobs that have ended")
    state = engine.status(job_id).state
    bucket = None if engine.shares_machine else workspace.local_copy
    if bucket is not None:
        bucket.runs.pull(job_id)
    writer: RunWriter | None = None
    with contextlib.suppress(NotFoundError):  # a job without a run
        writer = open_run(workspace, job_id)
    if writer is None or not state.is_final or state is JobState.SUCCEEDED:
        engine.resume(job_id)  # raises the matching error
        return
    before = read_run(workspace, job_id)
    # Written before the job starts: its sidecars exit when they see the run's end.
    writer.event(RESUME, host=socket.gethostname())
    try:
        if bucket is not None:
            bucket.runs.push(job_id)
        engine.resume(job_id)
    except BaseException:
        status: FinishStatus = "stopped" if before.status == "stopped" else "failed"
        writer.finish(status, before.message, before.cause)
        raise


_POLL_S, _REMOTE_POLL_S = 0.1, 1.0
_LAST_LINES = 10


@dataclass(frozen=True)
class Job:
    """Handle on a job of an engine: running, ended or deleted. Thread-safe."""

    id: str
    engine: Engine

    def status(self) -> JobStatus:
        """Return the job's current status.

        Raises:
            NotFoundError: The engine does not know the job.
        """
        return self.engine.status(self.id)

    def logs(self, *, task_id: str | None = None, follow: bool = False) -> Iterator[LogLine]:
        """Yield the log lines of the job's tasks.

        Args:
            task_id: A task such as ``chief-0``; None for all tasks.
            follow: Continue until the job has ended.
        """
        return self.engine.logs(self.id, task_id=task_id, follow=follow)

    def stop(self) -> None:
        """Request a stop; return once the request is recorded."""
        self.engine.cancel(self.id)

    def scale(self, workers: int) -> None:
        """Change the number of workers, counted as in ``--workers``; training keeps its step.

        Raises:
            SpecError: The job has no range of workers, or the number is outside the range.
            JobError: The job has ended.
        """
        status = self.status()
        size = next((size for size in status.sizes if size.role == "worker"), None)
        if not isinstance(self.engine, ElasticEngine) or (
            size is None and not status.state.is_final
        ):
            raise SpecError(
                f"{self.id} is not elastic",
                hint="start it with --workers MIN:MAX, as in --workers 2:8",
            )
        # The chief counts as a worker, except with parameter servers, where it only coordinates.
        chiefs = 0 if size is not None and size.serves else 1
        if size is not None and not size.least <= workers - chiefs <= size.most:
            raise SpecError(
                f"{self.id} can have {size.least + chiefs} to {size.most + chiefs} workers, "
                f"got {workers}"
            )
        self.engine.scale(self.id, {"worker": workers - chiefs})

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until the job ends or a timeout passes; return its status."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll_s = _POLL_S if self.engine.shares_machine else _REMOTE_POLL_S
        while True:
            status = self.status()
            if status.state.is_final or (deadline is not None and time.monotonic() >= deadline):
                return status
            time.sleep(poll_s)


@dataclass(frozen=True)
class Run:
    """Handle on a run: every access reads its record again. Thread-safe."""

    id: str
    workspace: Workspace
    _job: Job | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return repr(self.record)

    @property
    def job(self) -> Job:
        """The job that does the work.

        Raises:
            NotFoundError: The run has none, as of conversions and exports.
        """
        if self._job is not None:
            return self._job
        header = self.record.header
        if header.job_id is None:
            raise NotFoundError(f"{self.id} has no job", hint=f"it is a run of {header.kind}")
        return Job(header.job_id, get_engine(header.engine, self.workspace))

    @property
    def record(self) -> RunRecord:
        """The run's current record: parameters, metrics, artifacts, status."""
        self.pull()
        return read_run(self.workspace, self.id)

    @property
    def kind(self) -> str:
        """Kind of work, such as ``train`` or ``export``."""
        return self.record.kind

    @property
    def name(self) -> str | None:
        """Name given by the user, if any."""
        return self.record.name

    @property
    def status(self) -> str:
        """Status: running, succeeded, failed, stopped or lost."""
        return self.record.status

    @property
    def params(self) -> dict[str, Any]:
        """All parameters."""
        return self.record.params

    @property
    def metrics(self) -> dict[str, float]:
        """Last value of each metric."""
        return self.record.metrics

    @property
    def result(self) -> Any:
        """Return value of a function program, decoded from JSON; None for other programs."""
        found = [event["value"] for event in self.record.events() if event["type"] == "result"]
        return found[-1] if found else None

    def follow(self, stop: Callable[[], bool]) -> Iterator[Event]:
        """Yield the run's events as they arrive, until its end or until ``stop()`` is true.

        Args:
            stop: Called before each read.
        """

        def stops() -> bool:
            has_ended = stop()
            self.pull()
            return has_ended

        poll_s = _POLL_S if self.job.engine.shares_machine else _REMOTE_POLL_S
        return follow_events(self.workspace, self.id, stop=stops, poll_s=poll_s)

    def pull(self) -> None:
        """Bring the record up to date with the bucket, if other machines write it."""
        if self._job is None:
            return  # reading the record does
        if not self.job.engine.shares_machine and self.workspace.local_copy is not None:
            self.workspace.local_copy.runs.pull(self.id)

    def wait(self) -> RunRecord:
        """Wait for the run to end and return its record.

        Raises:
            UserCodeError: The script raised; the message is its traceback.
            JobError: The job failed for another reason.
            Interrupted: The job was stopped.
        """
        check_outcome(self.job.wait(), self)
        return self.record

    def resume(self) -> None:
        """Restart a failed or stopped job from its checkpoints; return at once.

        Raises:
            SpecError: The engine cannot restart jobs.
            JobError: The job has not ended, or has succeeded.
            EngineError: The job could not be started.
        """
        resume_job(self.workspace, self.job.engine, self.id)

    def export(self, name: str, **options: Any) -> ModelVersion:
        """Publish the trained model as the next version of ``name``.

        Args:
            name: The model's name.
            options: See `timonel.models.export`.
        """
        from timonel.models import export  # noqa: PLC0415 - most runs are never exported

        return export(self.id, name=name, workspace=self.workspace, **options)


def check_outcome(status: JobStatus, run: Run) -> None:
    """Raise the error for a job's outcome, unless it succeeded."""
    if status.state is JobState.SUCCEEDED:
        return
    if status.state is JobState.STOPPED:
        raise Interrupted(f"{run.id} was stopped", hint="its checkpoints and metrics are kept")
    message = status.message or f"{run.id} failed"
    hint = f"'timonel logs {run.id}' shows the output of its tasks"
    if status.cause is FailureCause.USER_ERROR:
        shown = _traceback(run, status.failed_task)
        if shown:
            raise UserCodeError(shown)
        # A script that exited by itself, as for unknown options, printed the reason before.
        said = _last_lines(run, status.failed_task)
        raise UserCodeError("\n".join([*said, message]), hint=hint)
    if status.cause is FailureCause.ENGINE:
        # Without output, as of pods that cannot use the workspace, the message has the cure.
        raise EngineError(message, hint=hint if _has_output(run) else None)
    if status.cause is FailureCause.TIME_LIMIT:
        hint = f"'timonel jobs resume {run.id}' continues it from its last checkpoint"
    raise JobError(message, hint=hint)


def _traceback(run: Run, task_id: str | None) -> str | None:
    """Return a task's last reported traceback, else any task's."""
    reported: list[Mapping[str, Any]] = []
    for event in run.record.events():
        if event["type"] == RESUME:
            reported = []  # from before the job was restarted
        elif event["type"] == "error":
            reported.append(event)
    own = [event for event in reported if event.get("task") == task_id]
    found = own or reported
    return str(found[-1]["traceback"]).rstrip() if found else None


def _has_output(run: Run) -> bool:
    with contextlib.suppress(TimonelError):
        return next(iter(run.job.logs()), None) is not None
    return False


def _last_lines(run: Run, task_id: str | None) -> list[str]:
    """Return the last lines that a task wrote since its last start."""
    lines: list[str] = []
    with contextlib.suppress(NotFoundError):  # the failure concerns no single task
        for line in run.job.logs(task_id=task_id):
            if line.text.startswith("=== "):
                lines = []
            elif not (is_noise(line.text) or line.text.startswith("timonel: ")):
                lines.append(line.text)
    return lines[-_LAST_LINES:]
