"""A version that the leader has loaded, as a worker asks it: over a connection of its own."""

from __future__ import annotations

import socket

from timonel.serving.compute.model import OnEnd, ProcessModel
from timonel.serving.compute.orders import ForkOrder
from timonel.serving.compute.process import ComputeProcess
from timonel.serving.config import ServerSettings
from timonel.serving.status import StatusError
from timonel.serving.workers.channel import Channel


class _Leader:
    """Where connections to one version's processes come from."""

    is_shared = True

    def __init__(self, channel: Channel, key: int) -> None:
        self._channel = channel
        self._key = key
        self.restarts = 0

    def connect(self, _order: ForkOrder) -> tuple[socket.socket, int]:
        """Return a connection; waits while the leader has the process started again."""
        connection, (pid, self.restarts) = self._channel.ask_for_connection("join", self._key)
        return connection, pid

    def cause(self, pid: int, timeout_s: float) -> str:
        """Word how a process ended, as the leader does."""
        try:
            cause = self._channel.ask("cause", self._key, pid).result(timeout_s + 1.0)
        except (StatusError, TimeoutError):
            cause = None
        return cause or "has ended its connection"

    def kill(self, pid: int) -> None:
        """Have the leader kill a process."""
        self._channel.tell("kill", self._key, pid)


class JoinedModel(ProcessModel):
    """Sends requests to the process of a version that the leader owns.

    When the process has died, the leader restarts it; this only asks
    for another connection until it is closed.

    Args:
        channel: Leads to the leader.
        key: What the leader knows the version by.
        name: For messages.
        settings: The server's.

    Raises:
        StatusError: The leader has it no more.
    """

    def __init__(self, channel: Channel, key: int, name: str, settings: ServerSettings) -> None:
        self._leader = _Leader(channel, key)
        self._order = ForkOrder(
            0, name, "", {}, settings.compute_threads, settings.compute.memory_mib << 20
        )
        self._hang_timeout_s = settings.compute.hang_timeout_s
        super().__init__(name, self._join, settings.drain_s)

    @property
    def restarts(self) -> int:
        """How often the leader has started a process in place of one that died."""
        return self._leader.restarts

    def _join(self, on_end: OnEnd) -> ComputeProcess:
        return ComputeProcess(self._leader, self._order, on_end, self._hang_timeout_s)
