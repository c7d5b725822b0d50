"""Jobs that the benchmark of training starts, looks into while they run, and disturbs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
BARE = HERE / "bare"
TIMONEL = str(Path(sys.executable).with_name("timonel"))
PYTHON = sys.executable
_POLL_S = 0.02


class BenchmarkError(Exception):
    """A row could not be measured; the message says why."""


def run_command(folder: Path, *words: str) -> None:
    """Run a command of timonel in a folder.

    Raises:
        BenchmarkError: It failed.
    """
    done = subprocess.run(
        [TIMONEL, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"timonel {words[0]} failed: {(done.stdout + done.stderr)[-500:]}")


@dataclass(frozen=True)
class Place:
    """Where the benchmark works, and how thoroughly.

    Attributes:
        folder: A folder of its own.
        quick: Whether it is only tried out: too few steps to say anything.
    """

    folder: Path
    quick: bool

    def sub(self, name: str) -> Path:
        """Return a new folder in it."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path


class Processes:
    """Processes of one job, whoever started it; what is left of them ends with the block.

    Their output goes to a file, the end of which explains a failure.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Start one, and return its pid."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                list(command), env={**os.environ, **(env or {})}, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._all.append(process)
        return process.pid

    def check(self) -> None:
        """Raise if one has failed."""
        for process in self._all:
            if process.poll():
                raise BenchmarkError(f"a process ended with {process.returncode}: {self.tail()}")

    def wait(self, seconds: float) -> None:
        """Wait for their end, which must be a good one."""
        wait_for(lambda: all(process.poll() is not None for process in self._all), seconds, [self])
        self.check()

    def stop(self) -> None:
        """Stop those that run: at first as Ctrl-C would, which also ends a job of ours."""
        running = [process for process in self._all if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                # Its session is what it has started: the bare tasks of a shell loop, say.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def tail(self) -> str:
        """Return the last lines that they have written, as one."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " / ".join(line.strip() for line in lines[-3:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


class Job(Processes):
    """A job of ours: one ``timonel train`` command, in a workspace of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self._workspace = folder / f"{name}-workspace"

    def train(
        self,
        script: Path,
        flags: Sequence[str],
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the command."""
        env = {**(env or {}), "TIMONEL_WORKSPACE": str(self._workspace)}
        self.start([TIMONEL, "train", str(script), *flags, "--", *args], env)

    @property
    def status(self) -> dict[str, Any]:
        """The job's status, empty before there is one."""
        for path in self._workspace.glob("jobs/*/status.json"):
            return dict(json.loads(path.read_text()))
        return {}

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the run has recorded."""
        return [
            json.loads(line)
            for path in self._workspace.glob("runs/*/events.jsonl")
            for line in path.read_text().splitlines()
        ]

    def pid(self, task_id: str) -> int:
        """Return the process of a task that runs now."""
        tasks = self.status.get("tasks", [])
        pids = {f"{task['role']}-{task['index']}": task["pid"] for task in tasks}
        if pids.get(task_id) is None:
            raise BenchmarkError(f"expected a task {task_id} that runs, got {pids}")
        return int(pids[task_id])


def wait_for(
    holds: Callable[[], bool], seconds: float, processes: Sequence[Processes] = ()
) -> None:
    """Wait until something holds; meanwhile none of the processes may fail."""
    deadline = time.monotonic() + seconds
    while not holds():
        for each in processes:
            each.check()
        if time.monotonic() > deadline:
            told = "; ".join(each.tail() for each in processes)
            raise BenchmarkError(f"nothing came in {seconds:.0f} s: {told}")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def slowed(pid: int, times: float, period_s: float = 0.1) -> Iterator[None]:
    """Let a process run for only a part of the time during the block."""
    done = threading.Event()

    def alternate() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not done.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(period_s * (1 - 1 / times))
                os.kill(pid, signal.SIGCONT)
                time.sleep(period_s / times)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def end_what_is_left(folder: Path) -> None:
    """End the warm parents that work in ``folder``, and mirrors that still write there."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            inside = Path(process.cwd()).is_relative_to(folder)
            if inside or any(str(folder) in word for word in process.cmdline()[1:]):
                process.terminate()
                left.append(process)
    _, alive = psutil.wait_procs(left, 5)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
