"""An engine unlike the local one: its tasks and files are elsewhere, behind a socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.contracts.engines import EngineHarness
from tests.engines.local.harness import MARK, marked_processes
from tests.engines.remote.node import ask
from timonel.engines import Engine, JobSpec, JobStatus, LogLine
from timonel.engines.source import is_archive
from timonel.errors import AlreadyExistsError, NotFoundError, SpecError
from timonel.storage import Workspace

_POLL_S = 0.05


class RemoteEngine(Engine):
    """Client of a node. It takes archives, and passes on nothing of this process."""

    name = "remote"

    def __init__(self, port: int) -> None:
        self._port = port

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        return cls(int((workspace.root / "node").read_text()))

    def submit(self, spec: JobSpec) -> None:
        if spec.source is None or not is_archive(spec.source):
            raise SpecError(f"the engine needs an archive, got {spec.source}")
        if ask(self._port, "submit", spec=spec.model_dump(mode="json")) == "exists":
            raise AlreadyExistsError(f"the job {spec.job_id} exists already")

    def status(self, job_id: str) -> JobStatus:
        found = ask(self._port, "status", job_id=job_id)
        if found is None:
            raise NotFoundError(f"no such job: {job_id}")
        return JobStatus.model_validate(found)

    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        self.status(job_id)
        known = JobSpec.model_validate(ask(self._port, "spec", job_id=job_id)).task_ids
        if task_id is not None and task_id not in known:
            raise NotFoundError(f"{job_id} has no task {task_id}: {', '.join(known)}")
        return self._lines(job_id, known if task_id is None else (task_id,), follow=follow)

    def _lines(self, job_id: str, task_ids: tuple[str, ...], *, follow: bool) -> Iterator[LogLine]:
        shown = dict.fromkeys(task_ids, 0)
        while True:
            is_over = not follow or self.status(job_id).state.is_final
            for task_id in task_ids:
                lines = ask(self._port, "log", job_id=job_id, task_id=task_id).splitlines()
                for line in lines[shown[task_id] :]:
                    yield LogLine(task_id=task_id, text=line)
                shown[task_id] = len(lines)
            if is_over:
                return
            time.sleep(_POLL_S)

    def cancel(self, job_id: str) -> None:
        if not self.status(job_id).state.is_final:
            ask(self._port, "cancel", job_id=job_id)

    def jobs(self) -> list[JobStatus]:
        found = [self.status(job_id) for job_id in ask(self._port, "jobs")]
        return sorted(found, key=lambda status: status.created_at, reverse=True)


@dataclass
class RemoteHarness(EngineHarness):
    """A node and its client."""

    port: int = 0

    def kill_task(self, job_id: str, task_id: str) -> None:
        tasks = {task.task_id: task.pid for task in self.engine.status(job_id).tasks}
        pid = tasks[task_id]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def read_file(self, name: str, job_id: str = "job") -> str | None:
        found: str | None = ask(self.port, "read", job_id=job_id, name=name)
        return found

    def write_file(self, name: str, text: str = "", job_id: str = "job") -> None:
        ask(self.port, "write", job_id=job_id, name=name, text=text)

    def leftovers(self) -> list[str]:
        marked = [f"{pid}: {command}" for pid, command in marked_processes(self.env[MARK])]
        return [*ask(self.port, "processes"), *marked]

    def temporary_files(self) -> list[str]:
        found: list[str] = ask(self.port, "temporary")
        return found

    def submit_and_die(self, spec: JobSpec) -> None:
        submitter = os.fork()
        if submitter == 0:
            self.engine.submit(spec)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(submitter, 0)


def start_node(root: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a node, and return its process and port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.remote.node", str(root)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())
