"""Reserve free ports for a generation until it ends, and connect to ports and Unix sockets.

A free port may be taken before the task binds it, so each port is held by a socket that is bound
but does not listen. With SO_REUSEADDR on both sides, Linux lets a task bind and listen beside such
a socket, and with SO_REUSEPORT also a server that sets it. The kernel never assigns a held port to
a socket that asks for any free port. TensorFlow's gRPC server sets SO_REUSEADDR and disables
SO_REUSEPORT, other gRPC servers set both.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Self


class PortReservation:
    """Loopback ports, held until `release`."""

    def __init__(self, count: int) -> None:
        self._sockets: list[socket.socket] = []
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.release)
            for _ in range(count):
                self._sockets.append(_hold())
            on_error.pop_all()

    @property
    def addresses(self) -> list[str]:
        """Addresses, ``127.0.0.1:<port>``."""
        return [f"127.0.0.1:{sock.getsockname()[1]}" for sock in self._sockets]

    def release(self) -> None:
        """Release the ports."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __iter__(self) -> Iterator[str]:
        return iter(self.addresses)


UNIX = "unix:"
"""Beginning of the address of a Unix socket, before its path."""


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to ``host:port`` or ``unix:PATH``."""
    if address.startswith(UNIX):
        return await asyncio.open_unix_connection(address.removeprefix(UNIX))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _hold() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # All interfaces: TensorFlow's server binds them all, and the port must be free on each.
        sock.bind(("", 0))
    except BaseException:
        sock.close()
        raise
    return sock
