"""Test harness for engines: the engine, scripted jobs, and waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from timonel.engines import Engine, JobSpec, JobState, JobStatus, RestartPolicy, RoleSpec

TASK_MODULE = "timonel.testing.engine_tasks"
DEADLINE_S = 30.0
_FIRST_POLL_S = 0.01
_LONGEST_POLL_S = 0.1
_MARK = "TIMONEL_TEST_MARK"


@dataclass
class EngineHarness:
    """An engine under test, with helpers for tests.

    Attributes:
        engine: The engine.
        jobs_dir: The parent of its job folders, as seen by the test.
        working_dir: A folder for tasks to run in.
        preload: Modules for zygotes of the jobs to import.
        env: The environment of every job.
        mark: A unique value in the jobs' environment, which identifies their processes.
    """

    engine: Engine
    jobs_dir: Path
    working_dir: Path
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid4().hex)

    def spec(self, *steps: str, job_id: str = "job", **fields: Any) -> JobSpec:
        """Return a job of two workers whose tasks run ``steps``.

        ``fields`` override the rest.
        """
        values: dict[str, Any] = {
            "roles": (RoleSpec(name="worker", replicas=2),),
            "restart": RestartPolicy(max_restarts=2, backoff_s=0.01),
            "stop_grace_s": 2.0,
            "start_timeout_s": DEADLINE_S,
        }
        env = {**self.env, **fields.pop("env", {}), _MARK: self.mark}
        return JobSpec(
            job_id=job_id,
            module=TASK_MODULE,
            args=steps,
            working_dir=str(self.working_dir),
            job_dir=str(self.jobs_dir / job_id),
            preload=self.preload,
            env=env,
            **{**values, **fields},
        )

    def submit(self, *steps: str, **fields: Any) -> str:
        """Submit a job as in `spec` and return its ID."""
        spec = self.spec(*steps, **fields)
        self.engine.submit(spec)
        return spec.job_id

    def run(self, *steps: str, **fields: Any) -> JobStatus:
        """Run a job as in `spec` to its end."""
        return self.wait(self.submit(*steps, **fields))

    def wait(self, job_id: str) -> JobStatus:
        """Wait for the end of a job and return its last status."""
        return self.wait_until(job_id, lambda status: status.state.is_final)

    def wait_for_state(self, job_id: str, state: JobState) -> JobStatus:
        """Wait for a job's state; fail if the job ends first."""
        return self.wait_until(job_id, lambda status: status.state == state)

    def wait_until(self, job_id: str, holds: Callable[[JobStatus], bool]) -> JobStatus:
        """Wait for a condition on a job's status.

        Fails if the job ends before the condition holds.
        """
        found: list[JobStatus] = []

        def check() -> bool:
            found.append(self.engine.status(job_id))
            return holds(found[-1]) or found[-1].state.is_final

        eventually(check)
        assert holds(found[-1]), found[-1]
        return found[-1]

    def file(self, name: str, job_id: str = "job") -> Path:
        """Return the path of a file in a job's folder."""
        return self.jobs_dir / job_id / name

    def lines(self, job_id: str = "job", **options: Any) -> list[tuple[str, str]]:
        """Return the log lines written by a job's tasks themselves."""
        return [
            (line.task_id, line.text)
            for line in self.engine.logs(job_id, **options)
            if not line.text.startswith("===")
        ]

    def processes(self) -> list[tuple[int, str]]:
        """Return the processes of this test's jobs, with their command lines."""
        marks = (self.mark.encode(), os.fsencode(self.jobs_dir))
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                shown = command + (folder / "environ").read_bytes()
            except OSError:
                continue
            if any(text in shown for text in marks) and int(folder.name) != os.getpid():
                found.append((int(folder.name), command.replace(b"\0", b" ").decode()))
        return found

    def close(self) -> None:
        """Cancel all jobs, and check that no process is left."""
        for status in self.engine.jobs():
            self.engine.cancel(status.job_id)
        for status in self.engine.jobs():
            self.wait(status.job_id)
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        """Wait until every process of this test's jobs is gone."""
        eventually(lambda: not self.processes(), explain=lambda: str(self.processes()))


def eventually(holds: Callable[[], bool], explain: Callable[[], str] = str) -> None:
    """Wait until a condition holds, up to `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    delay_s = _FIRST_POLL_S
    while not holds():
        assert time.monotonic() < deadline, f"did not come about: {explain()}"
        time.sleep(delay_s)
        # Back off, so that slow conditions are not starved of the processor.
        delay_s = min(delay_s * 1.5, _LONGEST_POLL_S)


def pid_of(status: JobStatus, task_id: str) -> int:
    """Return the pid of a running task."""
    pid = next(task.pid for task in status.tasks if task.task_id == task_id)
    assert pid is not None
    return pid
