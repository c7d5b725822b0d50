"""Harness of the local engine: jobs as processes and folders of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from uuid import uuid4

from tests.contracts.engines import EngineHarness
from timonel.engines import JobSpec
from timonel.engines.local import LocalEngine

MARK = "TIMONEL_TESTMARK"


@dataclass
class LocalHarness(EngineHarness):
    """The local engine, with the parent of its job folders."""

    jobs_dir: Path = field(default=Path())

    @classmethod
    def at(
        cls,
        jobs_dir: Path,
        working_dir: Path,
        preload: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a harness whose tasks run in ``working_dir``."""
        (working_dir / "source.txt").write_text("")
        temporary = working_dir / "temporary"
        temporary.mkdir(exist_ok=True)
        marked = {**(env or {}), MARK: uuid4().hex, "TMPDIR": str(temporary)}
        return cls(LocalEngine(jobs_dir), str(working_dir), preload, marked, jobs_dir)

    @property
    def working_dir(self) -> Path:
        return Path(self.source)

    def kill_task(self, job_id: str, task_id: str) -> None:
        tasks = {task.task_id: task.pid for task in self.engine.status(job_id).tasks}
        pid = tasks[task_id]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def read_file(self, name: str, job_id: str = "job") -> str | None:
        try:
            return self.file(name, job_id).read_text()
        except FileNotFoundError:
            return None

    def write_file(self, name: str, text: str = "", job_id: str = "job") -> None:
        self.file(name, job_id).write_text(text)

    def leftovers(self) -> list[str]:
        return [f"{pid}: {command}" for pid, command in self.processes()]

    def temporary_files(self) -> list[str]:
        temporary = self.working_dir / "temporary"
        return [str(path) for path in temporary.glob("timonel-task-*")]

    def submit_and_die(self, spec: JobSpec) -> None:
        submitter = os.fork()
        if submitter == 0:
            self.engine.submit(spec)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(submitter, 0)

    def file(self, name: str, job_id: str = "job") -> Path:
        """Return the path of a file in a job's folder."""
        return self.jobs_dir / job_id / name

    def processes(self) -> list[tuple[int, str]]:
        """Return the processes of this test's jobs, with their command lines."""
        return marked_processes(self.env[MARK], str(self.jobs_dir))


def marked_processes(*marks: str) -> list[tuple[int, str]]:
    """Return processes with one of the texts in their environment or command line."""
    texts = [os.fsencode(mark) for mark in marks]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            shown = command + (folder / "environ").read_bytes()
        except OSError:
            continue
        if any(text in shown for text in texts) and int(folder.name) != os.getpid():
            found.append((int(folder.name), command.replace(b"\0", b" ").decode()))
    return found
