"""A Unix socket that several workers accept from, in front of each one's gRPC.

gRPC takes no listening socket from outside, and two servers cannot have the same path. So what is
accepted here is passed on to a socket that only this worker's gRPC has.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

_CHUNK = 1 << 18


class Relay:
    """Accepts connections and passes bytes on, both ways. For one event loop.

    Args:
        listening: Where connections come from.
        target: The path of the socket that they are passed on to.
    """

    def __init__(self, listening: socket.socket, target: str) -> None:
        self._listening = listening
        self._target = target
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_unix_server(self._serve, sock=self._listening)

    def refuse(self) -> None:
        """Accept no more; what is open stays so."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(_CHUNK):
            target.write(chunk)
            await target.drain()
    with contextlib.suppress(OSError, RuntimeError):
        target.close()
