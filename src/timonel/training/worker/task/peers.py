"""Waiting for the task that leads, without TensorFlow.

gRPC tries again only a second after a connection was refused. Tasks that start at the same moment,
as those of a job do, would often wait for that.
"""

from __future__ import annotations

import socket
import time

_LOOK_S = 0.01
_PATIENCE_S = 10.0
"""After this TensorFlow waits, as long as it does."""


def await_leader(address: str, patience_s: float = _PATIENCE_S) -> bool:
    """Return once something listens at ``address``, or ``patience_s`` have passed; tell which.

    Args:
        address: ``host:port``.
        patience_s: The longest time.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + patience_s
    while not (found := _listens(host.strip("[]"), int(port))) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            # A connection to a free port of this machine may come out where it began.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False
