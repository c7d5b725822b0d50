"""Free ports for a generation, kept from others until it ends.

A port that was merely found free may be taken before the task binds it. So each one is held by a
socket that is bound and never listens. With SO_REUSEADDR on both sides Linux lets a task bind and
listen beside such a socket, and with SO_REUSEPORT a server that asks for that; nobody who asks the
kernel for any free port is given one that is held. TensorFlow's gRPC server sets the former and
switches the latter off, other gRPC servers set both.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Self


class PortReservation:
    """So many ports of the loopback address, held until `release`."""

    def __init__(self, count: int) -> None:
        self._sockets: list[socket.socket] = []
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.release)
            for _ in range(count):
                self._sockets.append(_hold())
            on_error.pop_all()

    @property
    def addresses(self) -> list[str]:
        """The addresses, ``127.0.0.1:<port>``."""
        return [f"127.0.0.1:{sock.getsockname()[1]}" for sock in self._sockets]

    def release(self) -> None:
        """Let go of the ports."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __iter__(self) -> Iterator[str]:
        return iter(self.addresses)


def _hold() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # All interfaces: TensorFlow's server binds them all, and any of them may be taken.
        sock.bind(("", 0))
    except BaseException:
        sock.close()
        raise
    return sock
