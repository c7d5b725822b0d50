"""A job's folder: what lies where, and who may write it.

<jobs>/<job id>/
  spec.json          the job document, written once by submit
  status.json        the job-status document, published at each change by the supervisor (by the
                     guard after the supervisor died)
  stop               the user's wish to end the job, written before anyone is told
  scale              the sizes that the user wishes for elastic roles, likewise
  supervisor.log     what the supervisor itself has to say
  logs/<task>.log    one per task, all generations
  sidecars/<n>.log   one per command beside the job; epilogue.log
  tasks/<task>/      the task's own: ready, report.json, progress
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.engines.base import FailureCause, JobState, JobStatus
from timonel.engines.local.processes import Identity
from timonel.engines.spec import JobSpec
from timonel.errors import CorruptError, NotFoundError
from timonel.storage import exclusive, read_document, write_bytes, write_document


@dataclass(frozen=True)
class Record:
    """What ``status.json`` holds: the status, and who is in charge of the job.

    Attributes:
        status: The job's status as its supervisor last saw it.
        owner: Who ends the job if the supervisor cannot: the submitter at first, then the guard.
        supervisor: The supervisor, once there is one; cancel signals this one only.
        epilogue_done: Whether the epilogue has been run.
    """

    status: JobStatus
    owner: Identity | None = None
    supervisor: Identity | None = None
    epilogue_done: bool = False

    @property
    def is_tended(self) -> bool:
        """Whether somebody who will bring the job to its end is alive."""
        return any(who is not None and who.is_alive for who in (self.supervisor, self.owner))


@dataclass(frozen=True)
class JobFolder:
    """The places in a job's folder, and its documents."""

    root: Path

    @property
    def stop_file(self) -> Path:
        """The file that records the user's wish to stop."""
        return self.root / "stop"

    @property
    def scale_file(self) -> Path:
        """The file that records which sizes the user wishes for elastic roles."""
        return self.root / "scale"

    @property
    def supervisor_log(self) -> Path:
        """The file that the supervisor's own output goes to."""
        return self.root / "supervisor.log"

    def task_log(self, task_id: str) -> Path:
        """The file that a task's output goes to."""
        return self.root / "logs" / f"{task_id}.log"

    def task_dir(self, task_id: str) -> Path:
        """The folder in which a task and its agent leave word for each other."""
        return self.root / "tasks" / task_id

    def command_log(self, name: str) -> Path:
        """The file that a sidecar's or the epilogue's output goes to."""
        return self.root / "sidecars" / f"{name}.log"

    def write_spec(self, spec: JobSpec) -> None:
        """Write the job document."""
        path = self.root / "spec.json"
        write_document(path, "job", {"spec": spec.model_dump(mode="json")})
        # The environment of tasks is in it, which may hold what others must not read.
        path.chmod(0o600)

    def read_spec(self) -> JobSpec:
        """Read the job document.

        Raises:
            CorruptError: It is damaged.
            FormatError: A newer release has written it.
        """
        path = self.root / "spec.json"
        body = read_document(path, "job")
        with _as_documents(path):
            return JobSpec.model_validate(body["spec"])

    def write(self, record: Record) -> None:
        """Publish a record."""
        body: dict[str, Any] = {
            **record.status.model_dump(mode="json"),
            "owner": record.owner.as_json() if record.owner else None,
            "supervisor": record.supervisor.as_json() if record.supervisor else None,
            "epilogue_done": record.epilogue_done,
        }
        write_document(self.root / "status.json", "job-status", body)

    def read(self) -> Record:
        """Read the record.

        Raises:
            NotFoundError: There is no such job.
            CorruptError: The record is damaged.
            FormatError: A newer release has written it.
        """
        path = self.root / "status.json"
        try:
            body = read_document(path, "job-status")
        except NotFoundError:
            raise unknown_job(self.root.name) from None
        with _as_documents(path):
            return Record(
                status=JobStatus.model_validate(body),
                owner=Identity.from_json(body.get("owner")),
                supervisor=Identity.from_json(body.get("supervisor")),
                epilogue_done=bool(body.get("epilogue_done")),
            )

    def status(self) -> JobStatus:
        """Return the status as it is now, which is failed if nobody is in charge any more.

        Raises:
            NotFoundError: There is no such job.
        """
        record = self.read()
        if record.status.state.is_final or record.is_tended:
            return record.status
        # Whoever was in charge may have published the end and left between the two looks.
        record = self.read()
        if record.status.state.is_final:
            return record.status
        words = self.last_words()
        how = f" ({words})" if words else ""
        return abandoned(record.status, f"supervisor died{how}")

    def last_words(self) -> str | None:
        """Return the error that a supervisor has died of, if it has left one in its log."""
        with contextlib.suppress(OSError):
            lines = self.supervisor_log.read_text(errors="replace").strip().splitlines()
            _, found, message = (lines or [""])[-1].rpartition("Error: ")
            if found:
                return message[:300]
        return None

    def record_stop(self, reason: str) -> None:
        """Record that the job is to stop, unless that is recorded already."""
        if not self.stop_file.exists():
            content = {"reason": reason, "time": time.time(), "pid": os.getpid()}
            write_bytes(self.stop_file, json.dumps(content).encode() + b"\n")

    def record_wish(self, sizes: Mapping[str, int]) -> None:
        """Record the sizes that elastic roles are to have; roles that are not named keep theirs."""
        with exclusive(self.root / ".scale.lock"):
            content = {"sizes": {**self.read_wish(), **sizes}, "time": time.time()}
            write_bytes(self.scale_file, json.dumps(content).encode() + b"\n")

    def read_wish(self) -> dict[str, int]:
        """Return the sizes that the user wishes, by role; none if there is no wish."""
        try:
            content = json.loads(self.scale_file.read_text())
        except FileNotFoundError:
            return {}
        return {str(role): int(count) for role, count in content["sizes"].items()}


@contextlib.contextmanager
def _as_documents(path: Path) -> Iterator[None]:
    """Raise what is wrong with the contents of a document as `CorruptError`."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CorruptError(
            f"expected the record of a job in {path}, got {type(error).__name__}: {reason}",
            hint="it is damaged: remove the job's folder once nothing of it runs",
        ) from error


def abandoned(status: JobStatus, message: str, *, now: float | None = None) -> JobStatus:
    """Return the status of a job whose supervisor ended before the job did."""
    tasks = tuple(
        task.model_copy(update={"state": "failed", "cause": FailureCause.ENGINE})
        if task.state in {"pending", "starting", "running"}
        else task
        for task in status.tasks
    )
    return status.model_copy(
        update={
            "state": JobState.FAILED,
            "cause": FailureCause.ENGINE,
            "message": message,
            "failed_task": None,
            "ended_at": now,
            "tasks": tasks,
        }
    )


def again(status: JobStatus) -> JobStatus:
    """Return the status of a job that is to begin again after its end."""
    return status.model_copy(
        update={
            "state": JobState.PENDING,
            "cause": None,
            "message": None,
            "failed_task": None,
            "ended_at": None,
        }
    )


def restarted(status: JobStatus, message: str) -> JobStatus:
    """Return the status of a job that goes on under another supervisor."""
    return again(status).model_copy(
        update={
            "state": JobState.RESTARTING,
            "restarts": status.restarts + 1,
            "cause": FailureCause.ENGINE,
            "message": message,
        }
    )


def unknown_job(job_id: str) -> NotFoundError:
    """Return the error that says there is no such job."""
    return NotFoundError(
        f"expected the id of a job, got {job_id}", hint="'timonel jobs' lists those that exist"
    )
