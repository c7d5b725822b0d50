"""The places that a group of workers listens at, kept by their leader."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from pathlib import Path

from timonel.errors import ServingError
from timonel.serving.rest_server import bind_rest_again


class Places:
    """Sockets that outlive the worker that listens at them.

    For REST each worker has a socket of its own at the same port, so that the kernel spreads
    connections over them. The leader keeps a copy of each: what has connected to a worker that
    died is not lost, but accepted by the one that comes in its place.

    Args:
        rest: REST's place, taken to be shared, which nobody listens at; none for no REST.
        unix_path: A path for gRPC; none for no such.
        count: The number of workers.

    Raises:
        ServingError: The path cannot be listened at.
    """

    def __init__(self, rest: socket.socket | None, unix_path: str | None, count: int) -> None:
        self._held = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._reserve = rest
        self._rest: list[socket.socket | None] = [None] * count
        self.unix: socket.socket | None = None
        self.private: str | None = None
        if unix_path is not None:
            self.unix = self._held.enter_context(_listen(unix_path))
            self._held.callback(Path(unix_path).unlink, missing_ok=True)
            self.private = self._held.enter_context(tempfile.TemporaryDirectory(prefix="timonel-"))

    def close(self) -> None:
        """Listen no more, as soon as the workers do not either."""
        with self._lock:
            self._reserve = None
        for index in range(len(self._rest)):
            self.leave(index)
        self._held.close()

    def leave(self, index: int) -> None:
        """Let others have the connections that would wait for a worker that is long away."""
        with self._lock:
            left, self._rest[index] = self._rest[index], None
        if left is not None:
            left.close()

    def rest(self, index: int) -> int | None:
        """Return the descriptor of a worker's socket for REST; none for no REST."""
        with self._lock:
            held = self._rest[index]
            if held is None and self._reserve is not None:
                held = self._rest[index] = bind_rest_again(self._reserve)
            return None if held is None else held.fileno()

    def descriptors(self, index: int) -> list[int]:
        """Return what a worker inherits."""
        rest = self.rest(index)
        unix = None if self.unix is None else self.unix.fileno()
        return [each for each in (rest, unix) if each is not None and each >= 0]


def _listen(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # As gRPC does: what a server that was killed has left behind is in nobody's way.
        if Path(path).is_socket():
            Path(path).unlink()
        listening.bind(path)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise ServingError(
            f"expected to listen on {path} for gRPC, got {error.strerror or error}"
        ) from error
    listening.setblocking(False)
    return listening
