"""Supervisor of one job on this machine.

A single thread waits for agents, signals and requests of users, and hands them to
`timonel.engines.coordination.supervision`.
"""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from timonel.engines.base import JobState, JobStatus
from timonel.engines.commands import Commands
from timonel.engines.coordination.lifecycle import (
    CoordinatorState,
    Event,
    ScaleRequested,
    StopRequested,
)
from timonel.engines.coordination.supervision import supervise
from timonel.engines.local.folder import JobFolder
from timonel.engines.local.launcher import LocalLauncher
from timonel.processes.clock import SteadyClock
from timonel.processes.loop import Loop
from timonel.processes.tree import (
    Identity,
    adopt_orphans,
    name_process,
    own_identity,
    reap,
)

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

logger = logging.getLogger(__name__)


class JobSupervisor:
    """Runs one job to its end.

    Args:
        guard: Process that takes over if this one dies.
    """

    def __init__(self, folder: JobFolder, guard: Identity) -> None:
        adopt_orphans()
        self._folder = folder
        self._loop = Loop(_SIGNALS)
        self._now = SteadyClock()  # clock changes must not cause timeouts
        self._events: deque[Event] = deque()
        identity = own_identity()
        spec = folder.read_spec()
        record = folder.read()
        name_process(f"job {spec.job_id}")
        self._record = replace(record, owner=guard, supervisor=identity)
        self._spec = spec
        self._launcher = LocalLauncher(
            spec=spec,
            folder=folder,
            loop=self._loop,
            token=str(identity),
            emit=self._events.append,
        )
        self._commands = Commands(
            spec=spec,
            job_dir=folder.root,
            working_dir=folder.working_dir(spec),
            logs=folder.command_logs,
            loop=self._loop,
            token=str(identity),
        )

    def run(self, accepted: Callable[[], None]) -> None:
        """Run the job.

        Calls ``accepted`` once the job is visible and can be stopped.
        """
        self._publish(self._record.status)
        accepted()
        self._commands.start_sidecars()
        if self._folder.stop_file.exists():
            self._events.append(StopRequested())
        self._read_requested_sizes()
        outcome = supervise(
            # A resumed job keeps its generation number.
            CoordinatorState(self._spec, self._record.status),
            self._launcher,
            self._events,
            wait=self._wait,
            publish=self._publish,
            now=self._now,
        )
        self._end(outcome)

    def _wait(self, timeout_s: float | None) -> None:
        signals = self._loop.wait(timeout_s)
        if _STOP_SIGNALS.intersection(signals):
            self._folder.request_stop("the supervisor received a signal to stop")
            self._events.append(StopRequested())
        if signal.SIGUSR1 in signals:
            self._read_requested_sizes()
        if signal.SIGCHLD in signals:
            for pid, _ in reap():
                self._commands.died(pid)

    def _read_requested_sizes(self) -> None:
        sizes = self._folder.requested_sizes()
        if sizes:
            self._events.append(ScaleRequested(sizes))

    def _end(self, outcome: JobStatus) -> None:
        """Run the epilogue, publish the end, then wait for sidecars.

        Readers of a final state see the epilogue's effects, but do not wait for sidecars such as a
        mirror.
        """
        winding_down = outcome.model_copy(update={"state": JobState.STOPPING, "ended_at": None})
        self._publish(winding_down)
        self._launcher.close()
        self._commands.run_epilogue(outcome)
        self._record = replace(self._record, epilogue_done=True)
        self._publish(outcome.model_copy(update={"ended_at": self._now()}))
        logger.info("ended as %s: %s", outcome.state, outcome.message)
        self._commands.wind_down()

    def _publish(self, status: JobStatus) -> None:
        self._record = replace(self._record, status=status)
        self._folder.write(self._record)
