"""Zygote of jobs: ``python -m timonel.engines.local.zygote <descriptor> <key> <module>...``.

It imports modules without initialising them, and forks agents that inherit them. Agents then belong
to their jobs and do not need the zygote, which may exit before them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from timonel.engines.agent.agent import run_agent
from timonel.engines.agent.run_module import run_module
from timonel.engines.local.zygote_client import DEFAULT_LINGER_S
from timonel.engines.local.zygote_key import loaded_files, write_stamps
from timonel.processes.memory import is_memory_scarce
from timonel.processes.tree import (
    MARKER,
    adopt_orphans,
    descendants,
    kill_all,
    mark_process,
    name_process,
)
from timonel.processes.zygote import Zygote, ZygoteError, import_modules, is_same_user, preload
from timonel.storage import exclusive

FIRST_REQUEST_S = 30.0
"""Seconds for the first request after the zygote was found."""
_LOOK_S = 5.0
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

logger = logging.getLogger(__name__)


class JobZygote(Zygote):
    """Serves requests on a socket until it was idle too long, or memory is scarce.

    Args:
        listener: Listening socket.
        path: Path of the socket.
        failure: Why nothing can be forked, if an import failed.
    """

    def __init__(self, listener: socket.socket, path: Path, failure: str | None) -> None:
        adopt_orphans()
        super().__init__(_STOP_SIGNALS)
        listener.setblocking(False)
        self._listener = listener
        self._path = path
        self._inode = _inode(path)
        self._failure = failure
        self._linger_s = DEFAULT_LINGER_S
        self._waiting: set[socket.socket] = set()
        self.loop.watch(listener.fileno(), self._accept)
        # A request is expected until then, however scarce memory is.
        self._expected_until = self._idle_at = time.monotonic() + FIRST_REQUEST_S

    def serve(self) -> None:
        """Serve until a signal, or until idle for too long."""
        while not self._is_over():
            signals = self.loop.wait(self._timeout_s())
            if _STOP_SIGNALS.intersection(signals):
                return
            if signal.SIGCHLD in signals:
                if self.collect():
                    self._idle_at = time.monotonic() + self._linger_s
                # Orphans of a killed agent were adopted by this process.
                kill_all(lambda: descendants(os.getpid(), exclude=self.children))

    def check(self, request: dict[str, Any]) -> None:
        """Check that the imports succeeded; postpone the exit."""
        self._linger_s = float(request["linger_s"])
        self._expected_until, self._idle_at = 0.0, time.monotonic() + self._linger_s
        if self._failure is not None:
            raise ZygoteError(self._failure)
        super().check(request)

    def run_child(self, request: dict[str, Any], connection: socket.socket) -> NoReturn:
        """Run an agent."""
        mark_process({MARKER: request["token"]})
        run_agent(connection, run=run_module)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        if not is_same_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._waiting.add(connection)
        # It may be a probe, followed by a request soon.
        self._expected_until = time.monotonic() + FIRST_REQUEST_S
        self._idle_at = max(self._idle_at, self._expected_until)
        self.loop.watch(connection.fileno(), lambda: self._receive(connection))

    def _receive(self, connection: socket.socket) -> None:
        self.loop.forget(connection.fileno())
        self._waiting.discard(connection)
        self.answer(connection)
        connection.close()

    def _timeout_s(self) -> float:
        if self.children:
            return _LOOK_S
        return min(_LOOK_S, max(0.0, self._idle_at - time.monotonic()))

    def _is_over(self) -> bool:
        if _inode(self._path) != self._inode:
            return True  # no client can find it any more
        now = time.monotonic()
        if self.children or self._waiting:
            return False
        if now < self._idle_at and (now < self._expected_until or not is_memory_scarce()):
            return False
        # Zygotes are looked up under this lock; a request of an earlier look-up is accepted first.
        with exclusive(self._path.with_suffix(".lock")):
            self._accept()
            if self._waiting:
                return False
            self._path.unlink(missing_ok=True)
            return True


def main(arguments: list[str]) -> int:
    """Import the modules, then serve."""
    number, key, *modules = arguments
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    name_process("zygote")
    if not sys.flags.safe_path:
        sys.path.pop(0)  # this process's folder; each task inserts its own
    started_ns = time.time_ns()
    failure = preload(lambda: import_modules(modules))
    logger.info("imported %s in %.1f s", ", ".join(modules), (time.time_ns() - started_ns) / 1e9)
    write_stamps(Path.cwd() / f"{key}.files", loaded_files(started_ns))
    with socket.socket(fileno=int(number)) as listener:
        listener.set_inheritable(False)
        JobZygote(listener, Path.cwd() / f"{key}.sock", failure).serve()
    return 0


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
