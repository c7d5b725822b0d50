"""Supervisor: runs the coordinator of one job on this machine.

A single thread feeds the coordinator (`timonel.engines.coordination`) with events of agents,
signals and the clock, carries out the returned actions, and publishes the status at each change.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from timonel.engines.base import JobState, JobStatus
from timonel.engines.coordination.coordinator import advance
from timonel.engines.coordination.lifecycle import (
    Action,
    Begin,
    CoordinatorPhase,
    CoordinatorState,
    Event,
    KillTasks,
    ScaleRequested,
    StartGeneration,
    StartTask,
    StopRequested,
    StopTasks,
    Tick,
)
from timonel.engines.local.commands import Commands
from timonel.engines.local.folder import JobFolder
from timonel.engines.local.launcher import LocalLauncher
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


class Supervisor:
    """Runs one job to its end.

    Args:
        folder: Job folder with the specification.
        guard: Process that takes over if this one dies.
    """

    def __init__(self, folder: JobFolder, guard: Identity) -> None:
        adopt_orphans()
        self._folder = folder
        self._loop = Loop(_SIGNALS)
        self._clock_offset_s = time.time() - time.monotonic()
        self._events: deque[Event] = deque()
        identity = own_identity()
        spec = folder.read_spec()
        record = folder.read()
        name_process(f"job {spec.job_id}")
        self._record = replace(record, owner=guard, supervisor=identity)
        # A resumed job keeps its generation number.
        self._state = CoordinatorState(spec, record.status)
        self._launcher = LocalLauncher(spec, folder, self._loop, str(identity), self._events.append)
        self._commands = Commands(spec, folder, self._loop, str(identity))

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
        self._events.append(Begin())
        self._process_events()
        while self._state.phase is not CoordinatorPhase.ENDED:
            self._wait()
            self._process_events()
        self._end()

    def _wait(self) -> None:
        wake_at = self._state.wake_at
        timeout_s = None if wake_at is None else max(0.0, wake_at - self._now())
        signals = self._loop.wait(timeout_s)
        if _STOP_SIGNALS.intersection(signals):
            self._folder.request_stop("the supervisor received a signal to stop")
            self._events.append(StopRequested())
        if signal.SIGUSR1 in signals:
            self._read_requested_sizes()
        if signal.SIGCHLD in signals:
            for pid, _ in reap():
                self._commands.died(pid)
        self._events.append(Tick())

    def _read_requested_sizes(self) -> None:
        sizes = self._folder.requested_sizes()
        if sizes:
            self._events.append(ScaleRequested(sizes))

    def _process_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            before = self._state
            self._state, actions = advance(before, event, self._now())
            for action in actions:
                self._carry_out(action)
            if (
                self._state.status != before.status
                and self._state.phase is not CoordinatorPhase.ENDED
            ):
                logger.info("%s -> %s", event, self._state.status.state)
                self._publish(self._state.status)

    def _carry_out(self, action: Action) -> None:
        logger.info("%s", action)
        match action:
            case StartGeneration():
                self._launcher.start(action, self._state.status.message)
            case StartTask():
                self._launcher.restart(action)
            case StopTasks():
                self._launcher.stop(action)
            case KillTasks():
                self._launcher.kill(action)

    def _end(self) -> None:
        """Run the epilogue, publish the end, then wait for sidecars.

        Readers of a final state see the epilogue's effects, but do not wait for sidecars such as a
        mirror.
        """
        outcome = self._state.status
        winding_down = outcome.model_copy(update={"state": JobState.STOPPING, "ended_at": None})
        self._publish(winding_down)
        self._launcher.close()
        self._commands.run_epilogue(outcome)
        self._record = replace(self._record, epilogue_done=True)
        self._publish(outcome.model_copy(update={"ended_at": self._now()}))
        logger.info("ended as %s: %s", outcome.state, outcome.message)
        self._commands.wind_down()

    def _now(self) -> float:
        """Return a steady time of day: clock changes must not cause timeouts."""
        return self._clock_offset_s + time.monotonic()

    def _publish(self, status: JobStatus) -> None:
        self._record = replace(self._record, status=status)
        self._folder.write(self._record)
