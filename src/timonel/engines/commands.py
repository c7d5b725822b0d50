"""Commands of a job: sidecars during it, and the epilogue after."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from timonel.engines.base import JobStatus
from timonel.engines.environment import OUTCOME, inherited, job_environment
from timonel.engines.spec import CommandSpec, JobSpec
from timonel.processes.loop import Loop
from timonel.processes.spawn import ProcessCommand, spawn
from timonel.processes.tree import kill_all, marked, reap

SIDECAR_NICENESS = 19
EPILOGUE_TIMEOUT_S = 120.0
SIDECAR_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL of sidecars."""

_logger = logging.getLogger(__name__)


@dataclass
class Commands:
    """Start and stop the commands of a job.

    Attributes:
        spec: Job specification.
        job_dir: Job folder.
        working_dir: Folder in which they run.
        logs: Folder of their output, a file for each.
        loop: Loop of this process, which receives SIGCHLD.
        token: Identity of the supervisor, which marks its processes.
    """

    spec: JobSpec
    job_dir: Path
    working_dir: Path
    logs: Path
    loop: Loop
    token: str
    _sidecars: set[int] = field(default_factory=set)
    _epilogue: int | None = None

    def start_sidecars(self) -> None:
        """Start all sidecars, with lower CPU priority than the job."""
        for number, command in enumerate(self.spec.sidecars):
            env = job_environment(self.spec, self.job_dir, self.token)
            self._sidecars.add(self._spawn(command, env, str(number), SIDECAR_NICENESS))

    def died(self, pid: int) -> None:
        """Record that a child of this process died."""
        self._sidecars.discard(pid)
        if pid == self._epilogue:
            self._epilogue = None

    def wind_down(self) -> None:
        """Wait for the sidecars, then kill all remaining processes.

        SIGTERM to this process skips the wait: the job is about to restart, with sidecars that
        continue where these stopped.
        """
        patience_s = max((sidecar.patience_s for sidecar in self.spec.sidecars), default=0.0)
        if not self._wait(lambda: bool(self._sidecars), patience_s, until=signal.SIGTERM):
            _signal_all(self._sidecars, signal.SIGTERM)
            self._wait(lambda: bool(self._sidecars), SIDECAR_GRACE_S)
        kill_all(lambda: marked(self.token))

    def run_epilogue(self, outcome: JobStatus) -> None:
        """Run the epilogue, if any, until it exits or times out."""
        if self.spec.epilogue is None:
            return
        env = {
            **job_environment(self.spec, self.job_dir, self.token),
            OUTCOME: outcome.model_dump_json(),
        }
        pid = self._spawn(self.spec.epilogue, env, "epilogue")
        self._epilogue = pid
        if not self._wait(lambda: self._epilogue is not None, EPILOGUE_TIMEOUT_S):
            _signal_all({pid}, signal.SIGKILL)

    def _spawn(
        self, command: CommandSpec, env: dict[str, str], name: str, niceness: int = 0
    ) -> int:
        self.logs.mkdir(parents=True, exist_ok=True)
        return spawn(
            ProcessCommand(
                module=command.module,
                args=command.args,
                env=env,
                cwd=str(self.working_dir),
                output=self.logs / f"{name}.log",
                niceness=niceness,
            )
        )

    def _wait(
        self, is_busy: Callable[[], bool], timeout_s: float, until: int | None = None
    ) -> bool:
        deadline = time.monotonic() + timeout_s
        while is_busy():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            signals = self.loop.wait(left_s)
            if signal.SIGCHLD in signals:
                for pid, _ in reap():
                    self.died(pid)
            if until in signals:
                return not is_busy()
        return True


def run_epilogue(spec: JobSpec, outcome: JobStatus) -> None:
    """Run the epilogue of a job that has no supervisor, until it exits or times out.

    A failure is logged.
    """
    command = spec.epilogue
    if command is None:
        return
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", command.module, *command.args],
            env={**inherited(), **spec.env, OUTCOME: outcome.model_dump_json()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=EPILOGUE_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [str(error)]
        _logger.warning("the epilogue of %s failed: %s", spec.job_id, lines[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        _logger.warning("the epilogue of %s failed: %s", spec.job_id, error)


def _signal_all(pids: set[int], number: int) -> None:
    # Children that are not reaped yet, so their PIDs are not reused.
    for pid in pids:
        os.kill(pid, number)
