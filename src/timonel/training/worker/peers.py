"""Wait for the leading task, without TensorFlow.

gRPC retries only a second after a refused connection. A job's tasks start at the same moment and
would often wait for that.
"""

from __future__ import annotations

import socket
import time

_LOOK_S = 0.01
_PATIENCE_S = 10.0
"""After this time TensorFlow does the waiting."""


def await_leader(address: str, patience_s: float = _PATIENCE_S) -> bool:
    """Wait until ``host:port`` accepts connections or ``patience_s`` passes; tell if it does."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + patience_s
    while not (found := _listens(host.strip("[]"), int(port))) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            # A connection to a free local port may connect to itself.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False
