"""The local engine: jobs as processes of this machine, each with a supervisor of its own."""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from timonel.engines.base import (
    ElasticEngine,
    Engine,
    JobState,
    JobStatus,
    LogLine,
    ResumingEngine,
)
from timonel.engines.elastic import check_sizes
from timonel.engines.local.folder import JobFolder, Record, again, unknown_job
from timonel.engines.local.launch import launch
from timonel.engines.local.logs import LogTail, follow_logs, read_logs
from timonel.engines.local.processes import kill_all, marked, own_identity
from timonel.engines.spec import JobSpec
from timonel.errors import (
    AlreadyExistsError,
    EngineError,
    JobError,
    NotFoundError,
    SpecError,
    TimonelError,
)
from timonel.storage import exclusive, publish_dir

_logger = logging.getLogger(__name__)

_WIND_DOWN_S = 30.0
"""How long a job that has ended may take to end what ran beside it, which is told to leave."""
_POLL_S = 0.1


class LocalEngine(Engine, ElasticEngine, ResumingEngine):
    """Runs jobs on this machine; no daemon is needed between jobs.

    Everything it knows is in the job folders: several processes may use it at once, and a job goes
    on when the process that submitted it ends. For processes of one machine and one user.

    Args:
        jobs_dir: The folder that holds the job folders.
    """

    name = "local"

    def __init__(self, jobs_dir: Path) -> None:
        self._jobs_dir = Path(jobs_dir).absolute()

    def submit(self, spec: JobSpec) -> None:
        """Start a job and return once its supervisor has taken over.

        Raises:
            AlreadyExistsError: A job of that id exists.
            SpecError: The job folder is not this engine's, or there is no such working folder.
            EngineError: The supervisor cannot be started.
        """
        folder = self._new_folder(spec)
        with publish_dir(folder.root) as aside:
            draft = JobFolder(aside)
            draft.write_spec(spec)
            draft.write(Record(JobStatus.of(spec, time.time()), owner=own_identity()))
        try:
            launch(folder)
        except EngineError:
            shutil.rmtree(folder.root, ignore_errors=True)
            raise
        except BaseException:
            # ^C between the request and its acceptance: nobody would know of the job.
            self.cancel(spec.job_id)
            raise

    def status(self, job_id: str) -> JobStatus:
        """Return what is known of a job now."""
        return self._folder(job_id).status()

    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        """Yield the lines that tasks have written, oldest first within a task."""
        folder = self._folder(job_id)
        known = folder.read_spec().task_ids
        if task_id is not None and task_id not in known:
            raise NotFoundError(
                f"expected a task of {job_id}, got {task_id}", hint=f"its tasks: {', '.join(known)}"
            )
        chosen = known if task_id is None else (task_id,)
        tails = [LogTail(name, folder.task_log(name)) for name in chosen]
        if not follow:
            return read_logs(tails)
        return follow_logs(tails, lambda: folder.status().state.is_final)

    def cancel(self, job_id: str) -> None:
        """Ask a job to stop; return once the wish is recorded."""
        folder = self._folder(job_id)
        if folder.status().state.is_final:
            self._sweep(folder)
            return
        folder.record_stop("cancelled by the user")
        supervisor = folder.read().supervisor
        # Without one yet, or any more, the file is enough: a supervisor looks for it as it starts.
        if supervisor is not None:
            supervisor.signal(signal.SIGTERM)

    def scale(self, job_id: str, sizes: Mapping[str, int]) -> None:
        """Wish for so many tasks of elastic roles; return once the wish is recorded."""
        folder = self._folder(job_id)
        check_sizes(folder.read_spec().roles, sizes)
        state = folder.status().state
        if state.is_final:
            raise JobError(f"expected a job that runs, but {job_id} has {state.value}")
        folder.record_wish(sizes)
        supervisor = folder.read().supervisor
        # Without one yet, the file is enough: a supervisor looks for it as it starts.
        if supervisor is not None:
            supervisor.signal(signal.SIGUSR1)

    def resume(self, job_id: str) -> None:
        """Start a job again that has failed or was stopped, as the same job.

        Raises:
            JobError: It has not ended, or has succeeded, or what runs beside it has not ended yet.
        """
        folder = self._folder(job_id)
        with exclusive(folder.root / ".resume.lock"):
            state = folder.status().state
            if not state.is_final or state is JobState.SUCCEEDED:
                raise JobError(
                    f"expected a job that has failed or was stopped, but {job_id} is {state.value}"
                )
            _end_the_last(folder)
            self._sweep(folder)
            before = folder.read()
            folder.stop_file.unlink(missing_ok=True)
            folder.write(Record(again(folder.status()), owner=own_identity()))
            try:
                launch(folder)
            except EngineError:
                folder.write(before)
                raise
            except BaseException:
                self.cancel(job_id)
                raise

    def jobs(self) -> list[JobStatus]:
        """Return the status of every job of this engine, newest first.

        One that cannot be read, as one of a newer release, is left out and logged.
        """
        found = []
        for path in self._jobs_dir.glob("*/status.json"):
            try:
                found.append(JobFolder(path.parent).status())
            except NotFoundError:
                continue  # removed between the two looks
            except TimonelError as error:
                _logger.warning("left out the job %s: %s", path.parent.name, error)
        return sorted(found, key=lambda status: status.created_at, reverse=True)

    def _new_folder(self, spec: JobSpec) -> JobFolder:
        root = self._jobs_dir / spec.job_id
        if Path(spec.job_dir).absolute() != root:
            raise SpecError(f"expected the job folder {root}, got {spec.job_dir}")
        if not Path(spec.working_dir).is_dir():
            raise SpecError(f"expected a folder to work in, got {spec.working_dir}")
        if root.exists():
            raise AlreadyExistsError(
                f"expected a new job id, but the job {spec.job_id} exists",
                hint="choose another id, or remove the job's folder once it has ended",
            )
        return JobFolder(root)

    def _folder(self, job_id: str) -> JobFolder:
        folder = JobFolder(self._jobs_dir / job_id)
        if not job_id or "/" in job_id or job_id.startswith(".") or not folder.root.is_dir():
            raise unknown_job(job_id)
        return folder

    def _sweep(self, folder: JobFolder) -> None:
        """Kill what a job may have left whose supervisor and guard both died."""
        supervisor = folder.read().supervisor
        if supervisor is not None and not supervisor.is_alive:
            kill_all(lambda: marked(str(supervisor)))


def _end_the_last(folder: JobFolder) -> None:
    """End a job's supervisor and guard, which stay for its sidecars beyond its end.

    Raises:
        JobError: They have not ended in time.
    """
    supervisor = folder.read().supervisor
    if supervisor is not None:
        supervisor.signal(signal.SIGTERM)
    deadline = time.monotonic() + _WIND_DOWN_S
    while folder.read().is_tended:
        if time.monotonic() > deadline:
            raise JobError(
                f"{folder.root.name} cannot start again: what ran beside it has not ended within "
                f"{_WIND_DOWN_S:g} s",
                hint=f"look at {folder.supervisor_log}, and try again",
            )
        time.sleep(_POLL_S)
