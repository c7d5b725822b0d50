"""Jobs that are disturbed from outside: when, by what, and how long they took to get over it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks import _measure

from timonel.engines import JobState, JobStatus
from timonel.engines.local.folder import JobFolder
from timonel.training import Run

Moment = Literal["start", "step", "checkpoint", "end"]
"""While tasks start; in a step, a checkpoint or more into a generation; while a checkpoint is being
written or has just been; after the last epoch, while the model is exported."""

COMMIT = _measure.commit()
# Read here because a fixture hides the environment from tests.
SEED = os.environ.get("TIMONEL_SOAK_SEED") or str(zlib.crc32(COMMIT.encode()))
"""Picks the moments; the commit does where nobody else has."""
_POLL_S = 0.02
_PATIENCE_S = 90.0


@dataclass(frozen=True)
class Disturbance:
    """One signal to one process of a job.

    Attributes:
        target: The task, or ``agent of <task>``, or ``supervisor``.
        number: The signal.
        moment: Where in the job it came.
        at: When, in Unix seconds.
        generation: The generation it came to.
        epochs: Epochs that were recorded before it.
        cause: What the engine took the failure for; None where nothing had to be restarted.
        noticed_s: Seconds until the generation had ended.
        resumed_s: Seconds until the next epoch was trained, or the job's end where none was left.
    """

    target: str
    number: signal.Signals
    moment: Moment
    at: float
    generation: int
    epochs: int
    cause: str | None = None
    noticed_s: float | None = None
    resumed_s: float | None = None

    @property
    def landed(self) -> bool:
        """Whether it met the job before its end."""
        return self.cause is not None


HEAD = (
    (
        "| job | process | signal | moment | epochs recorded | taken for | noticed after s "
        "| next epoch after s |"
    ),
    "| --- | --- | --- | --- | --- | --- | ---: | ---: |",
)
TOLD: list[tuple[str, Disturbance]] = []
"""What the jobs of this session were disturbed by, and what each of these was."""


@dataclass
class DisturbedJob:
    """A job that runs, and what it is disturbed by."""

    run: Run
    epochs: int
    disturbances: list[Disturbance] = field(default_factory=list)

    def strike(
        self, target: str, number: signal.Signals, moment: Moment, chance: random.Random
    ) -> Disturbance:
        """Send a signal to a task at a moment that chance picks, and wait until that is noticed."""
        generation = self.status().restarts + 1
        self.until(lambda: self.status().generation == generation)
        self._await_moment(moment, generation, target, chance)
        pid = self._pid(target)
        told = Disturbance(
            target=target,
            number=number,
            moment=moment,
            at=time.time(),
            generation=generation,
            epochs=self.recorded_epochs(),
        )
        if pid is not None:
            # It may have ended by itself just now, at the end of the job.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        told = self._noticed(told)
        self.disturbances.append(told)
        return told

    def finish(self, name: str | None = None) -> list[Disturbance]:
        """Wait for the job's end and return the disturbances with what it took to go on.

        Args:
            name: What the job is; the test's name by default.
        """
        self.run.wait()
        self.disturbances = [self._resumed(told) for told in self.disturbances]
        named = name or _present_test()
        TOLD.extend((named, each) for each in self.disturbances)
        return self.disturbances

    def status(self) -> JobStatus:
        """Return the job's status."""
        return self.run.job.status()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds or the job has ended."""
        deadline = time.monotonic() + _PATIENCE_S
        while not holds() and not self.status().state.is_final:
            assert time.monotonic() < deadline, self.status()
            time.sleep(_POLL_S)

    def recorded_epochs(self) -> int:
        """Return how many epochs the run's record holds."""
        return len({event["epoch"] for event in self._events("metrics")})

    def checkpoints(self, generation: int) -> int:
        """Return how many checkpoints a generation, and those after it, have reported."""
        begun = [event["t"] for event in self._events("restart")][: generation - 1]
        if len(begun) < generation - 1:
            return 0
        since = begun[-1] if begun else 0.0
        return sum(event["t"] > since for event in self._events("checkpoint"))

    def _await_moment(
        self, moment: Moment, generation: int, target: str, chance: random.Random
    ) -> None:
        if moment == "start":
            self.until(lambda: self._pid(target) is not None)
            time.sleep(chance.uniform(0.0, 1.5))
            return
        if moment == "end":
            last = self.epochs - 1
            self.until(lambda: any(e["epoch"] == last for e in self._events("metrics")))
            time.sleep(chance.uniform(0.0, 0.3))
            return
        wanted = chance.randint(1, 2)
        self.until(lambda: self.checkpoints(generation) >= wanted)
        time.sleep(chance.uniform(0.0, 0.5 if moment == "step" else 0.02))

    def _noticed(self, told: Disturbance) -> Disturbance:
        def is_over() -> bool:
            status = self.status()
            return status.generation > told.generation or status.state is JobState.RESTARTING

        self.until(is_over)
        noticed_s = time.time() - told.at
        # The cause is known once all tasks of the generation have ended.
        self.until(lambda: self.status().restarts >= told.generation)
        status = self.status()
        if status.restarts < told.generation or status.cause is None:
            return told
        return replace(told, cause=status.cause.value, noticed_s=noticed_s)

    def _resumed(self, told: Disturbance) -> Disturbance:
        begun = [e["t"] for e in self._events("restart") if e["generation"] > told.generation]
        if not told.landed or not begun:
            return told
        after = [
            event["t"] for event in self.run.record.events()
            if event["t"] > begun[0] and event["type"] in {"metrics", "finish"}
        ]  # fmt: skip
        return replace(told, resumed_s=after[0] - told.at)

    def _events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.run.record.events() if event["type"] == kind]

    def _pid(self, target: str) -> int | None:
        if target == "supervisor":
            supervisor = JobFolder(self.run.workspace.jobs / self.run.id).read().supervisor
            return supervisor.pid if supervisor else None
        name = target.removeprefix("agent of ")
        pid = next(task.pid for task in self.status().tasks if task.task_id == name)
        return parent_of(pid) if pid is not None and target != name else pid


def _present_test() -> str:
    # Such as "tests/training/test_resume.py::test_ten_blows[keras-2] (call)".
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition(" ")[0]
    return test.removeprefix("test_").replace("_", " ").replace("[", ", ").rstrip("]")


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def left_behind(run: Run) -> list[str]:
    """Return the processes and the half-written files of a job that are still there."""
    job_dir = run.workspace.jobs / run.id
    found = [str(path) for path in job_dir.rglob(".tmp-*")]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            if os.fsencode(job_dir) in command + (folder / "environ").read_bytes():
                found.append(f"{folder.name}: {command.replace(bytes(1), b' ').decode()}")
    return found


def lines(rows: Sequence[tuple[str, Disturbance]]) -> list[str]:
    """Return what jobs were disturbed by as the lines of a Markdown table below `HEAD`."""
    found = []
    for name, told in rows:
        seconds = [_seconds(told.noticed_s), _seconds(told.resumed_s)]
        taken_for = told.cause or "nothing: it was done"
        cells = [name, told.target, told.number.name, told.moment, str(told.epochs), taken_for]
        found.append(_row([*cells, *seconds]))
    return found


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
