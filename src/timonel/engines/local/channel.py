"""Non-blocking JSON lines over a stream socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

_CHUNK_BYTES = 1 << 16


class Channel:
    """Stream socket that carries one JSON object per line.

    Never blocks: data that the peer does not accept yet is buffered until `flush`. Owns its socket.
    For one thread.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._received = b""
        self._unsent = b""
        self.is_open = True

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether data is waiting to be sent."""
        return self.is_open and bool(self._unsent)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send or buffer a message; drop it if the peer is gone."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much buffered data as the peer accepts."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            # `receive` reports the loss too, after the data that arrived before it.
            self._unsent = b""

    def receive(self) -> list[dict[str, Any]]:
        """Return the received messages; `is_open` is false once the peer is gone."""
        try:
            while chunk := self._socket.recv(_CHUNK_BYTES):
                self._received += chunk
            self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the socket."""
        self.is_open = False
        self._socket.close()
