"""Connections between a job's coordinator and its pods.

One TCP connection per pod, with JSON objects as lines. Orders and events of the task travel as they
do between a supervisor and an agent (`timonel.engines.agent.messages`); the other messages are:

| kind | from | content |
|---|---|---|
| ``join`` | pod | first message: token, version, task, host and name of the pod |
| ``welcome`` | coordinator | index of the job's folder, and the grace period of tasks |
| ``changes`` | both | changes of the job's folder |
| ``output`` | pod | lines of the task's output |
| ``leaving`` | pod | it is being deleted, and will not take another order |
| ``ping`` | both | sign of life |
| ``bye`` | coordinator | the job has ended |
"""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from timonel._version import __version__
from timonel.processes.loop import Channel

PING_S = 2.0
SILENT_S = 20.0
"""Silence after which each side considers the other lost.

A pod then stops its task; the coordinator starts the task elsewhere only once the pod is gone.
"""
_OWN_KINDS = frozenset({"join", "welcome", "changes", "output", "leaving", "ping", "bye"})
_LONGEST_FIRST = 4096
# A connection without an answer to TCP's own probes is closed by the kernel.
_KEEPALIVE_S = 10


@dataclass(frozen=True)
class Member:
    """A pod that has joined.

    Attributes:
        task_id: Task that it runs, such as ``worker-1``.
        host: Host name at which other pods reach it.
        pod: Name of the pod.
    """

    task_id: str
    host: str
    pod: str

    def join(self, token: str) -> dict[str, Any]:
        """Return the first message to the coordinator."""
        body = {"task_id": self.task_id, "host": self.host, "pod": self.pod}
        return {"kind": "join", "token": token, "version": __version__, **body}

    @classmethod
    def of(cls, message: Mapping[str, Any], token: str) -> Self | None:
        """Return who sent a first message; None if it may not join."""
        given = str(message.get("token")).encode(errors="replace")
        if message.get("kind") != "join" or not hmac.compare_digest(given, token.encode()):
            return None
        if message.get("version") != __version__:
            return None
        names = (message.get("task_id"), message.get("host"), message.get("pod"))
        return cls(*map(str, names))


class Link(Channel):
    """A connection, which hands other messages than orders and events to a callback.

    Args:
        take: Called with each message of `_OWN_KINDS` but pings.
        is_trusted: Whether the other side is known to belong to the job. Until then, what is not a
            first message ends the connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[Mapping[str, Any]], None],
        *,
        is_trusted: bool = True,
    ) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        super().__init__(sock)
        self.is_trusted = is_trusted
        self._take = take
        self._heard_at = time.monotonic()
        self._ping_at = 0.0

    def receive(self) -> list[dict[str, Any]]:
        """Return received orders or events; pass other messages to the callback first."""
        self.limit = None if self.is_trusted else _LONGEST_FIRST
        try:
            messages = super().receive()
        except (ValueError, RecursionError):
            self.is_open = False
            return []
        if not self.is_trusted:
            messages = self._receive_first(messages)
        if messages:
            self._heard_at = time.monotonic()
        events = []
        for message in messages:
            if message.get("kind") not in _OWN_KINDS:
                events.append(message)
            elif message["kind"] != "ping":
                self._take(message)
        return events

    def _receive_first(self, messages: list[Any]) -> list[Any]:
        """Take a first message; return those after it, once the other side is trusted.

        A stranger may send anything. A pod pings before it is welcomed.
        """
        if not messages:
            self.is_open = self.is_open and len(self._received) < _LONGEST_FIRST
            return []
        first, *others = messages
        if not isinstance(first, dict) or first.get("kind") != "join":
            self.is_open = False
            return []
        self._take(first)
        return others if self.is_trusted else []

    def keep_alive(self) -> bool:
        """Send a ping if one is due; return whether the other side is heard of."""
        now = time.monotonic()
        if now >= self._ping_at:
            self._ping_at = now + PING_S
            self.send({"kind": "ping"})
        return now - self._heard_at <= SILENT_S


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``."""
    host, _, port = text.rpartition(":")
    return host, int(port)
