"""Layout and documents of a job folder.

<jobs>/<job id>/
  spec.json          job document, written once by submit
  status.json        job-status document, published at each change by the supervisor (by the
                     guard after the supervisor died)
  stop               stop request of the user, written before processes are signalled
  scale              requested sizes of elastic roles, likewise
  supervisor.log     output of the supervisor
  logs/<task>.log    one per task, all generations
  sidecars/<n>.log   one per sidecar; epilogue.log
  tasks/<task>/      files of the task: ready, report.json, progress
  source/            the program's files, if they came as an archive
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.engines.base import FailureCause, JobState, JobStatus
from timonel.engines.local.folders import checked
from timonel.engines.source import is_archive
from timonel.engines.spec import JobSpec
from timonel.errors import NotFoundError
from timonel.processes.tree import Identity
from timonel.storage import exclusive, local_path, read_document, write_bytes, write_document

_LOG_ENTRY_BYTES = 1 << 16


@dataclass(frozen=True)
class JobRecord:
    """Content of ``status.json``: job status and responsible processes.

    Attributes:
        status: Job status as the supervisor last saw it.
        owner: Process that ends the job if the supervisor cannot: first the submitter, then the
            guard.
        supervisor: Supervisor, once it runs; cancel signals only this process.
        epilogue_done: Whether the epilogue has run.
    """

    status: JobStatus
    owner: Identity | None = None
    supervisor: Identity | None = None
    epilogue_done: bool = False

    @property
    def is_supervised(self) -> bool:
        """Whether the supervisor or the owner is alive."""
        return any(who is not None and who.is_alive for who in (self.supervisor, self.owner))


@dataclass(frozen=True)
class JobFolder:
    """Paths and documents in a job folder."""

    root: Path

    @property
    def stop_file(self) -> Path:
        """File that records the user's stop request."""
        return self.root / "stop"

    @property
    def scale_file(self) -> Path:
        """File that records the requested sizes of elastic roles."""
        return self.root / "scale"

    @property
    def supervisor_log(self) -> Path:
        """File of the supervisor's own output."""
        return self.root / "supervisor.log"

    def working_dir(self, spec: JobSpec) -> Path:
        """Return the folder in which tasks run."""
        if spec.source is None or is_archive(spec.source):
            return self.root / "source"
        return local_path(spec.source)

    def task_log(self, task_id: str) -> Path:
        """Return the file of a task's output."""
        return self.root / "logs" / f"{task_id}.log"

    def task_dir(self, task_id: str) -> Path:
        """Return the folder for files shared by a task and its agent."""
        return self.root / "tasks" / task_id

    @property
    def command_logs(self) -> Path:
        """Folder of the output of sidecars and the epilogue."""
        return self.root / "sidecars"

    def write_spec(self, spec: JobSpec) -> None:
        """Write the job document."""
        path = self.root / "spec.json"
        write_document(path, "job", {"spec": spec.model_dump(mode="json")})
        # It contains the tasks' environment, which may hold secrets.
        path.chmod(0o600)

    def read_spec(self) -> JobSpec:
        """Read the job document."""
        path = self.root / "spec.json"
        body = read_document(path, "job")
        with checked(path, "job"):
            return JobSpec.model_validate(body["spec"])

    def write(self, record: JobRecord) -> None:
        """Publish a record."""
        body: dict[str, Any] = {
            **record.status.model_dump(mode="json"),
            "owner": record.owner.as_json() if record.owner else None,
            "supervisor": record.supervisor.as_json() if record.supervisor else None,
            "epilogue_done": record.epilogue_done,
        }
        write_document(self.root / "status.json", "job-status", body)

    def read(self) -> JobRecord:
        """Read the record."""
        path = self.root / "status.json"
        try:
            body = read_document(path, "job-status")
        except NotFoundError:
            raise unknown_job(self.root.name) from None
        with checked(path, "job"):
            return JobRecord(
                status=JobStatus.model_validate(body),
                owner=Identity.from_json(body.get("owner")),
                supervisor=Identity.from_json(body.get("supervisor")),
                epilogue_done=bool(body.get("epilogue_done")),
            )

    def status(self) -> JobStatus:
        """Return the current status; failed if no responsible process is alive."""
        record = self.read()
        if record.status.state.is_final or record.is_supervised:
            return record.status
        # The process may have published the end and exited in between.
        record = self.read()
        if record.status.state.is_final:
            return record.status
        words = self.last_error()
        how = f" ({words})" if words else ""
        return abandoned(record.status, f"supervisor died{how}")

    def last_error(self) -> str | None:
        """Return the supervisor's last error from its log, if any; a full disk takes none."""
        with contextlib.suppress(OSError):
            lines = self.supervisor_log.read_text(errors="replace").strip().splitlines()
            _, found, message = (lines or [""])[-1].rpartition("Error: ")
            if found:
                return message[:300]
        is_full = shutil.disk_usage(self.root).free < _LOG_ENTRY_BYTES
        return os.strerror(errno.ENOSPC) if is_full else None

    def request_stop(self, reason: str) -> None:
        """Record a stop request, unless one is recorded already."""
        if not self.stop_file.exists():
            content = {"reason": reason, "time": time.time(), "pid": os.getpid()}
            write_bytes(self.stop_file, json.dumps(content).encode() + b"\n")

    def request_sizes(self, sizes: Mapping[str, int]) -> None:
        """Record requested sizes of elastic roles; other roles keep theirs."""
        with exclusive(self.root / ".scale.lock"):
            content = {"sizes": {**self.requested_sizes(), **sizes}, "time": time.time()}
            write_bytes(self.scale_file, json.dumps(content).encode() + b"\n")

    def requested_sizes(self) -> dict[str, int]:
        """Return the requested sizes by role; empty if none were requested."""
        try:
            content = json.loads(self.scale_file.read_text())
        except FileNotFoundError:
            return {}
        return {str(role): int(count) for role, count in content["sizes"].items()}


def abandoned(status: JobStatus, message: str, *, now: float | None = None) -> JobStatus:
    """Return the status of a job whose supervisor died early."""
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


def unknown_job(job_id: str) -> NotFoundError:
    """Return the error for an unknown job ID."""
    return NotFoundError(f"no such job: {job_id}", hint="'timonel jobs' lists the jobs")
