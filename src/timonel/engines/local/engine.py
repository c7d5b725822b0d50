"""Local engine: jobs as processes of this machine, with supervisors."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from timonel.engines.base import (
    ElasticEngine,
    Engine,
    JobState,
    JobStatus,
    LogLine,
    ResumingEngine,
)
from timonel.engines.coordination.elastic import check_sizes
from timonel.engines.local.admission import check_admission
from timonel.engines.local.folder import JobFolder, JobRecord, unknown_job
from timonel.engines.local.folders import is_folder, readable
from timonel.engines.local.guard import start_daemon
from timonel.engines.logs import LogTail, follow_logs, read_logs
from timonel.engines.source import is_archive, unpack
from timonel.engines.spec import JobSpec
from timonel.errors import (
    AlreadyExistsError,
    EngineError,
    JobError,
    NotFoundError,
)
from timonel.processes.tree import kill_all, marked, own_identity
from timonel.storage import Workspace, exclusive, publish_dir

_WIND_DOWN_S = 30.0
"""Maximum seconds that an ended job's sidecars run after SIGTERM."""
_POLL_S = 0.1


class LocalEngine(Engine, ElasticEngine, ResumingEngine):
    """Runs jobs on this machine, without a daemon between jobs.

    All state is in the job folders: several processes may use the engine at once, and a job
    continues after the submitting process exits. For processes of one user on one machine.

    Args:
        jobs_dir: Folder of the job folders.
    """

    name = "local"
    shares_machine = True

    def __init__(self, jobs_dir: Path) -> None:
        self._jobs_dir = Path(jobs_dir).absolute()

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the engine of a workspace's jobs."""
        return cls(workspace.jobs)

    def submit(self, spec: JobSpec) -> None:
        """Start a job; return when its supervisor has accepted it.

        Raises:
            AlreadyExistsError: A job of that ID exists.
            SpecError: The job asks for what this machine does not have.
            NotFoundError: Its source does not exist.
            EngineError: The supervisor cannot be started.
        """
        folder = self._new_folder(spec)
        with publish_dir(folder.root) as aside:
            draft = JobFolder(aside)
            if spec.source is not None and is_archive(spec.source):
                unpack(spec.source, draft.working_dir(spec))
            draft.write_spec(spec)
            draft.write(JobRecord(JobStatus.of(spec, time.time()), owner=own_identity()))
        try:
            start_supervisor(folder)
        except EngineError:
            shutil.rmtree(folder.root, ignore_errors=True)
            raise
        except BaseException:
            # ^C between request and acceptance: the caller would not know of the job.
            self.cancel(spec.job_id)
            raise

    def status(self, job_id: str) -> JobStatus:
        """Return the current status of a job."""
        return self._folder(job_id).status()

    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        """Yield lines of task output, oldest first within each task."""
        folder = self._folder(job_id)
        known = folder.read_spec().task_ids
        if task_id is not None and task_id not in known:
            raise NotFoundError(
                f"{job_id} has no task {task_id}", hint=f"its tasks: {', '.join(known)}"
            )
        chosen = known if task_id is None else (task_id,)
        tails = [LogTail(name, folder.task_log(name)) for name in chosen]
        if not follow:
            return read_logs(tails)
        return follow_logs(tails, lambda: folder.status().state.is_final)

    def cancel(self, job_id: str) -> None:
        """Request that a job stops; return when the request is recorded."""
        folder = self._folder(job_id)
        if folder.status().state.is_final:
            self._kill_remains(folder)
            return
        folder.request_stop("cancelled by the user")
        supervisor = folder.read().supervisor
        # Without a supervisor, the file suffices: a supervisor reads it when it starts.
        if supervisor is not None:
            supervisor.signal(signal.SIGTERM)

    def scale(self, job_id: str, sizes: Mapping[str, int]) -> None:
        """Request sizes of elastic roles; return when the request is recorded."""
        folder = self._folder(job_id)
        check_sizes(folder.read_spec().roles, sizes)
        state = folder.status().state
        if state.is_final:
            raise JobError(f"{job_id} cannot change its size: it has ended ({state.value})")
        folder.request_sizes(sizes)
        supervisor = folder.read().supervisor
        # Without a supervisor, the file suffices: a supervisor reads it when it starts.
        if supervisor is not None:
            supervisor.signal(signal.SIGUSR1)

    def resume(self, job_id: str) -> None:
        """Resume a failed or stopped job under its ID.

        Raises:
            JobError: The job has not ended, has succeeded, or its sidecars are still running.
        """
        folder = self._folder(job_id)
        with exclusive(folder.root / ".resume.lock"):
            state = folder.status().state
            if not state.is_final or state is JobState.SUCCEEDED:
                raise JobError(
                    f"only a failed or stopped job can be resumed, but {job_id} {state.phrase}"
                )
            _stop_previous(folder)
            self._kill_remains(folder)
            before = folder.read()
            folder.stop_file.unlink(missing_ok=True)
            folder.write(JobRecord(folder.status().resumed(), owner=own_identity()))
            try:
                start_supervisor(folder)
            except EngineError:
                folder.write(before)
                raise
            except BaseException:
                self.cancel(job_id)
                raise

    def jobs(self) -> list[JobStatus]:
        """Return the status of every job of this engine, newest first.

        Unreadable jobs, such as those of a newer release, are skipped and logged.
        """
        found = readable(
            self._jobs_dir, "status.json", "job", lambda path: JobFolder(path).status()
        )
        return sorted(found, key=lambda status: status.created_at, reverse=True)

    def job_ids(self) -> list[str]:
        """Return the IDs of all jobs of this engine, also of unreadable ones, sorted."""
        folders = self._jobs_dir.iterdir() if self._jobs_dir.is_dir() else ()
        return sorted(path.name for path in folders if path.is_dir() and path.name[0] != ".")

    def _new_folder(self, spec: JobSpec) -> JobFolder:
        check_admission(spec)
        root = self._jobs_dir / spec.job_id
        if root.exists():
            raise AlreadyExistsError(
                f"the job {spec.job_id} exists already",
                hint="choose another id, or remove the job's folder once it has ended",
            )
        return JobFolder(root)

    def _folder(self, job_id: str) -> JobFolder:
        if not is_folder(self._jobs_dir, job_id):
            raise unknown_job(job_id)
        return JobFolder(self._jobs_dir / job_id)

    def _kill_remains(self, folder: JobFolder) -> None:
        """Kill remaining processes of a job whose supervisor died."""
        supervisor = folder.read().supervisor
        if supervisor is not None and not supervisor.is_alive:
            kill_all(lambda: marked(str(supervisor)))


def start_supervisor(folder: JobFolder) -> None:
    """Start a job's supervisor, detached from this process and its terminal."""
    start_daemon("timonel.engines.local.daemon", folder.root, folder.supervisor_log, "job")


def _stop_previous(folder: JobFolder) -> None:
    """Stop the supervisor and guard of an ended job.

    They stay until its sidecars have exited.
    """
    supervisor = folder.read().supervisor
    if supervisor is not None:
        supervisor.signal(signal.SIGTERM)
    deadline = time.monotonic() + _WIND_DOWN_S
    while folder.read().is_supervised:
        if time.monotonic() > deadline:
            raise JobError(
                f"{folder.root.name} cannot be resumed: its sidecars have not exited within "
                f"{_WIND_DOWN_S:g} s",
                hint=f"see {folder.supervisor_log}, then try again",
            )
        time.sleep(_POLL_S)
