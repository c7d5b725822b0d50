"""Run one task through an agent of its own, without a supervisor."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto

from timonel.engines.agent.messages import StartOrder, StopOrder, decode_event, encode
from timonel.engines.base import LogLine
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import StartFailed, TaskExited
from timonel.engines.logs import LogTail
from timonel.errors import EngineError
from timonel.processes.loop import Channel
from timonel.processes.tree import MARKER, TASK_DIR, kill_all, marked

_POLL_MS = 200
_AGENT_EXIT_S = 10.0
_DISPLAY_END_S = 2.0
_LINES_AT_ONCE = 1000


class Demand(Enum):
    """What should happen to a running task."""

    CONTINUE = auto()
    STOP = auto()
    """SIGTERM, so that it saves and exits."""
    STOP_UNSAVED = auto()
    """Two SIGTERMs, as if a peer was lost: saving would be useless."""
    KILL = auto()


def run_task(
    order: StartOrder,
    *,
    grace_s: float,
    demand: Callable[[], Demand],
    show: Callable[[LogLine], None],
) -> TaskExit:
    """Run a task to its end.

    When it returns or raises, no process of the task or its agent is left.

    Args:
        order: Start order; its environment marks the task as one of this process.
        grace_s: Seconds from SIGTERM to SIGKILL when the task is stopped.
        demand: Polled; only the first demand to stop counts, and one to kill after it.
        show: Called with each line of the task's output. After a `BlockingIOError`, it is called
            again later; after another `OSError`, lines are dropped.
    """
    display = _Display(LogTail(order.task_id, order.log, only_new=True), show)
    is_stopping = False
    with _started_agent(order) as channel:
        readable = select.poll()
        readable.register(channel, select.POLLIN)
        while (task_exit := _read_exit(channel)) is None and (now := demand()) is not Demand.KILL:
            if now is not Demand.CONTINUE and not is_stopping:
                is_stopping = True
                urgent = now is Demand.STOP_UNSAVED
                stop = StopOrder(order.generation, order.attempt, grace_s, urgent=urgent)
                channel.send(encode(stop))
            has_more = display.update()
            readable.poll(0 if has_more else _POLL_MS)
    display.finish()
    return task_exit or TaskExit(signal=signal.SIGKILL)


@contextlib.contextmanager
def _started_agent(order: StartOrder) -> Iterator[Channel]:
    own_end, agent_end = socket.socketpair()
    # Not forked: this process may have threads, such as those of a notebook or of MPI. The working
    # folder is the user's, so no module may be imported from it (-P).
    command = [sys.executable, "-P", "-m", "timonel.engines.agent", str(agent_end.fileno())]
    # Ctrl-C would reach the agent until it has a session of its own.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[agent_end.fileno()], env=order.env
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        agent_end.close()
    channel = Channel(own_end)
    try:
        channel.send(encode(order))
        yield channel
    finally:
        channel.close()  # the agent kills the task and exits
        try:
            process.wait(_AGENT_EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # The processes of an agent that was killed.
        inside = f"{TASK_DIR}={order.task_dir}"
        kill_all(lambda: marked(order.env[MARKER], inside=inside))


class _Display:
    """Shows a log; neither a stuck terminal nor endless output keeps the caller waiting."""

    def __init__(self, tail: LogTail, show: Callable[[LogLine], None]) -> None:
        self._tail = tail
        self._show = show
        self._lines: Iterator[LogLine] = iter(())
        self._line: LogLine | None = None

    def update(self, *, to_end: bool = False) -> bool:
        """Show some lines; return whether there may be more to show at once."""
        try:
            for _ in range(_LINES_AT_ONCE):
                self._line = self._line or next(self._lines, None)
                if self._line is None:
                    self._lines = self._tail.read(to_end=to_end)
                    self._line = next(self._lines, None)
                if self._line is None:
                    return False
                self._show(self._line)
                self._line = None
        except BlockingIOError:
            return False
        except OSError:
            self._line, self._lines = None, iter(())
            return False
        return True

    def finish(self) -> None:
        """Show the rest of the log, but do not wait long for a stuck terminal."""
        give_up_at = time.monotonic() + _DISPLAY_END_S
        while time.monotonic() < give_up_at:
            if self.update(to_end=True):
                give_up_at = time.monotonic() + _DISPLAY_END_S
            elif self._line is None:
                return
            else:
                time.sleep(_POLL_MS / 1000)


def _read_exit(channel: Channel) -> TaskExit | None:
    """Return the task's exit once the agent has reported it, or has died."""
    for event in map(decode_event, channel.receive()):
        if isinstance(event, StartFailed):
            raise EngineError(event.message)
        if isinstance(event, TaskExited):
            return event.exit
    return None if channel.is_open else TaskExit(agent_lost=True)
