"""One worker's place in a group: there is a process in it, which is started again when it ends."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from timonel.serving.compute.parent import ended
from timonel.serving.compute.restart_policy import after_crash
from timonel.serving.monitoring.snapshot import Snapshot
from timonel.serving.monitoring.sums import from_fields
from timonel.serving.workers.channel import Channel
from timonel.serving.workers.lending import Lending

_LOG = logging.getLogger(__name__)


class Leader(Protocol):
    """What a seat needs of its group; thread-safe."""

    def descriptors(self, index: int) -> Sequence[int]:
        """Return what a worker inherits."""

    def away(self, index: int) -> None:
        """Note that a worker will not be back at once."""

    def lending(self, channel: Callable[[], Channel]) -> Lending:
        """Return what a new worker borrows by."""

    def answer(self, seat: Seat, name: str, values: Sequence[Any]) -> Any:
        """Answer a worker's question that is not about versions."""

    def changed(self) -> None:
        """Note that a seat is not as it was."""

    def left(self, seat: Seat, counted: Snapshot, cause: str) -> None:
        """Note that a worker has ended, and what it had counted."""


class Seat:
    """Keeps a worker running. Owns its process, the connection to it, and a thread.

    Args:
        index: Which of the workers it is.
        leader: The group.
    """

    def __init__(self, index: int, leader: Leader) -> None:
        self.index = index
        self.applied = -1
        self.is_ready = False
        self.counted = Snapshot()
        self.deaths = 0
        self._leader = leader
        self._channel: Channel | None = None
        self._lending: Lending | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"worker {index}", daemon=True)

    @property
    def pid(self) -> int | None:
        """The worker's process; none while there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def channel(self) -> Channel | None:
        """The way to a worker that answers requests; none while there is no such."""
        return self._channel if self.is_ready else None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def tell(self, name: str, *values: Any) -> None:
        """Tell the worker something, if there is one."""
        channel = self._channel
        if channel is not None:
            channel.tell(name, *values)

    def drain(self) -> None:
        """Have the worker answer what is under way and end; none takes its place. Returns."""
        with self._lock:
            self._stop.set()
        self.tell("drain")

    def join(self, deadline: float) -> None:
        """Wait for the end, and bring it about at ``deadline``, in monotonic seconds."""
        if not self._thread.is_alive():
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._kill()
        self._thread.join()

    def _run(self) -> None:
        crashes: tuple[float, ...] = ()
        while not self._stop.is_set():
            cause = self._live()
            if self._stop.is_set():
                return
            restart = after_crash(crashes, time.monotonic())
            crashes = restart.crashes
            self.deaths += 1
            self._leader.changed()
            delay_s = restart.delay_s
            _LOG.error("worker %d %s; it is started again in %g s", self.index, cause, delay_s)
            if delay_s:
                self._leader.away(self.index)
                self._stop.wait(delay_s)

    def _live(self) -> str:
        """Start a worker and wait for its end; returns how that was."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            descriptors = (theirs.fileno(), *self._leader.descriptors(self.index))
            command = [sys.executable, "-P", "-m", "timonel.serving.workers.worker"]
            with self._lock:
                if self._stop.is_set():
                    ours.close()
                    return ""
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=descriptors,
                )
        process = self._process
        channel = Channel(ours, self._answer, self._kill, f"worker {self.index}")
        lending = self._lending = self._leader.lending(lambda: channel)
        self._channel = channel
        channel.start()
        if self._stop.is_set():
            channel.tell("drain")
        code = process.wait()
        channel.close()
        self.is_ready, self._channel, self.applied = False, None, -1
        lending.end()
        counted, self.counted = self.counted, Snapshot()
        self._leader.left(self, counted, ended(code))
        return ended(code)

    def _kill(self) -> None:
        # Popen reaps, so the number cannot have passed on to another process.
        if self._process is not None:
            self._process.kill()

    def _answer(self, name: str, values: list[Any]) -> Any:
        lending = self._lending
        assert lending is not None
        if name == "join":
            return lending.join(*values)
        if name == "cause":
            return lending.cause(values[2])
        if name == "kill":
            lending.kill(values[1])
        elif name == "left":
            lending.left(values[0])
        elif name == "counts":
            self.counted = from_fields(values[0])
        elif name == "applied":
            self.applied = values[0]
            self._leader.changed()
        elif name == "ready":
            self.is_ready = True
            self._leader.changed()
        else:
            return self._leader.answer(self, name, values)
        return None
