"""Handles on a training run and the job that does its work, from the control side."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timonel.engines import Engine, FailureCause, JobState, JobStatus, LogLine
from timonel.errors import EngineError, Interrupted, JobError, NotFoundError, UserCodeError
from timonel.storage import Workspace
from timonel.tracking import RunRecord, read_run
from timonel.tracking.events import RESUME
from timonel.training.resume import resume_job
from timonel.training.scale import scale_workers
from timonel.training.terminal import is_noise

if TYPE_CHECKING:
    from timonel.models import ModelVersion

_POLL_S = 0.1
_LAST_LINES = 10


@dataclass(frozen=True)
class Job:
    """A job on its engine. A handle: it may be gone, ended or running. Thread-safe."""

    id: str
    engine: Engine

    def status(self) -> JobStatus:
        """Return what is known of it now.

        Raises:
            NotFoundError: The engine does not know it.
        """
        return self.engine.status(self.id)

    def logs(self, *, task_id: str | None = None, follow: bool = False) -> Iterator[LogLine]:
        """Yield what its tasks have written.

        Args:
            task_id: One task such as ``chief-0``; all of them without it.
            follow: Go on until the job has ended.
        """
        return self.engine.logs(self.id, task_id=task_id, follow=follow)

    def stop(self) -> None:
        """Ask it to stop; return once the wish is recorded."""
        self.engine.cancel(self.id)

    def scale(self, workers: int) -> None:
        """Have it go on with so many workers, as ``--workers`` counts them, at the same step.

        Raises:
            SpecError: It was not started with a range of workers, or with one without this number.
            JobError: It has ended.
        """
        scale_workers(self.engine, self.id, workers)

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Return its status once it has ended, or after ``timeout_s`` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            status = self.status()
            if status.state.is_final or (deadline is not None and time.monotonic() >= deadline):
                return status
            time.sleep(_POLL_S)


@dataclass(frozen=True)
class Run:
    """A training run. A handle: what is known of it is read anew each time. Thread-safe."""

    id: str
    workspace: Workspace
    job: Job

    @property
    def record(self) -> RunRecord:
        """What is recorded of it now: parameters, metrics, artifacts, status."""
        return read_run(self.workspace, self.id)

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric."""
        return self.record.metrics

    @property
    def result(self) -> Any:
        """What the function that it ran has returned, as JSON has it; None of anything else."""
        found = [event["value"] for event in self.record.events() if event["type"] == "result"]
        return found[-1] if found else None

    def wait(self) -> RunRecord:
        """Wait for its end and return what was recorded.

        Raises:
            UserCodeError: The script raised; the message is its traceback.
            JobError: It failed for another reason.
            Interrupted: It was stopped.
        """
        check_outcome(self.job.wait(), self)
        return self.record

    def resume(self) -> None:
        """Have it go on from its checkpoints after it failed or was stopped; return at once.

        Raises:
            SpecError: Its engine starts no job again.
            JobError: It has not ended, or has succeeded.
            EngineError: It cannot be started.
        """
        resume_job(self.workspace, self.job.engine, self.id)

    def export(self, name: str, **options: Any) -> ModelVersion:
        """Publish the model that it has trained as the next version of ``name``.

        Args:
            name: The model's name.
            options: See `timonel.models.export`.
        """
        from timonel.models import export  # noqa: PLC0415 - most runs are never exported

        return export(self.id, name=name, workspace=self.workspace, **options)


def check_outcome(status: JobStatus, run: Run) -> None:
    """Raise what the end of a run's job means, unless it succeeded.

    Raises:
        UserCodeError: The script raised.
        JobError: It failed for another reason.
        EngineError: The engine failed.
        Interrupted: It was stopped.
    """
    if status.state is JobState.SUCCEEDED:
        return
    if status.state is JobState.STOPPED:
        raise Interrupted(f"{run.id} was stopped", hint="what it has saved and reported is kept")
    message = status.message or f"{run.id} failed"
    hint = f"'timonel logs {run.id}' shows what its tasks have written"
    if status.cause is FailureCause.USER_ERROR:
        shown = _traceback(run, status.failed_task)
        if shown:
            raise UserCodeError(shown)
        # A script that has ended itself, as for options it does not know, said why before.
        said = _last_lines(run, status.failed_task)
        raise UserCodeError("\n".join([*said, message]), hint=hint)
    if status.cause is FailureCause.ENGINE:
        raise EngineError(message, hint=hint)
    raise JobError(message, hint=hint)


def _traceback(run: Run, task_id: str | None) -> str | None:
    """Return the traceback that a task has reported last."""
    reported: list[Mapping[str, Any]] = []
    for event in run.record.events():
        if event["type"] == RESUME:
            reported = []  # of the job before it was started again
        elif event["type"] == "error":
            reported.append(event)
    own = [event for event in reported if event.get("task") == task_id]
    found = own or reported
    return str(found[-1]["traceback"]).rstrip() if found else None


def _last_lines(run: Run, task_id: str | None) -> list[str]:
    """Return what a task has written last, since its last start."""
    lines: list[str] = []
    with contextlib.suppress(NotFoundError):  # of the job as a whole
        for line in run.job.logs(task_id=task_id):
            if line.text.startswith("=== "):
                lines = []
            elif not (is_noise(line.text.encode()) or line.text.startswith("timonel: ")):
                lines.append(line.text)
    return lines[-_LAST_LINES:]
