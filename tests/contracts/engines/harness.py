"""Test harness for engines: the engine, scripted jobs, and waiting."""

from __future__ import annotations

import abc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from timonel.engines import Engine, JobSpec, JobState, JobStatus, RestartPolicy, RoleSpec

TASK_MODULE = "tests.contracts.engine_tasks"
DEADLINE_S = 30.0
_FIRST_POLL_S = 0.01
_LONGEST_POLL_S = 0.1


@dataclass
class EngineHarness(abc.ABC):
    """An engine under test, with what tests do beside its interface.

    Attributes:
        engine: The engine.
        source: The source of the jobs, in a form that the engine takes. It has the file
            ``source.txt``.
        preload: Modules for zygotes of the jobs to import.
        env: The environment of every job.
    """

    engine: Engine
    source: str
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @abc.abstractmethod
    def kill_task(self, job_id: str, task_id: str) -> None:
        """Kill a running task's process with SIGKILL, as an out-of-memory killer would."""

    @abc.abstractmethod
    def read_file(self, name: str, job_id: str = "job") -> str | None:
        """Return the text of a file in a job's folder; None if it is not there."""

    @abc.abstractmethod
    def write_file(self, name: str, text: str = "", job_id: str = "job") -> None:
        """Write a file into a job's folder, where its tasks find it."""

    @abc.abstractmethod
    def leftovers(self) -> list[str]:
        """Return the processes of this test's jobs, in words."""

    @abc.abstractmethod
    def temporary_files(self) -> list[str]:
        """Return the temporary folders of this test's tasks, in words."""

    @abc.abstractmethod
    def submit_and_die(self, spec: JobSpec) -> None:
        """Submit a job in a process that is killed as soon as the engine has accepted it."""

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
        env = {**self.env, **fields.pop("env", {})}
        return JobSpec(
            job_id=job_id,
            module=TASK_MODULE,
            args=steps,
            source=self.source,
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

    def read_json(self, name: str, job_id: str = "job") -> Any:
        """Wait for a JSON document in a job's folder and return it."""
        self.wait_for_file(name, job_id)
        return json.loads(self.read_file(name, job_id) or "")

    def wait_for_file(self, name: str, job_id: str = "job") -> None:
        """Wait for a file in a job's folder."""
        eventually(lambda: self.read_file(name, job_id) is not None, explain=lambda: name)

    def lines(self, job_id: str = "job", **options: Any) -> list[tuple[str, str]]:
        """Return the log lines written by a job's tasks themselves."""
        return [
            (line.task_id, line.text)
            for line in self.engine.logs(job_id, **options)
            if not line.text.startswith("===")
        ]

    def close(self) -> None:
        """Cancel all jobs, and check that nothing of them is left."""
        for status in self.engine.jobs():
            self.engine.cancel(status.job_id)
        for status in self.engine.jobs():
            self.wait(status.job_id)
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        """Wait until nothing of this test's jobs is left."""
        eventually(lambda: not self.leftovers(), explain=lambda: str(self.leftovers()))


def eventually(holds: Callable[[], bool], explain: Callable[[], str] = str) -> None:
    """Wait until a condition holds, up to `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    delay_s = _FIRST_POLL_S
    while not holds():
        assert time.monotonic() < deadline, f"did not come about: {explain()}"
        time.sleep(delay_s)
        # Back off, so that slow conditions are not starved of the processor.
        delay_s = min(delay_s * 1.5, _LONGEST_POLL_S)
