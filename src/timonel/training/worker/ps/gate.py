"""Lets no function run while the chief takes a worker back into its cluster.

TensorFlow changes its view of the cluster then. A function of the chief with a part on a parameter
server that is under way at that moment never comes to an end.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PATIENCE_S = 2.0
"""How long one waits for functions that are under way: a worker that hangs never comes back."""
_LOOK_S = 0.1


class Gate:
    """Open for everyone, or closed for everyone but one. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passing = 0
        self._is_closed = False

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Wait until the gate is open, and keep it open."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._passing += 1
        try:
            yield
        finally:
            with self._changed:
                self._passing -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def closed(self, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Close the gate, and wait until everyone is through, or for so long."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._passing == 0, patience_s)
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()


def guarded(update: Callable[..., Any], gate: Gate, addresses: Sequence[str]) -> Callable[..., Any]:
    """Return what updates the cluster once all workers are there, with the gate closed.

    Args:
        update: Blocks until all workers answer, which with the gate closed would hold up those
            that do.
        gate: Closed meanwhile.
        addresses: Of all workers, ``host:port``.
    """

    def update_quietly(*args: Any, **kwargs: Any) -> Any:
        for address in addresses:
            while not _answers(address):
                time.sleep(_LOOK_S)
        with gate.closed():
            return update(*args, **kwargs)

    return update_quietly


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False
