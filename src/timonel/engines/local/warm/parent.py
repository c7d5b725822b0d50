"""Warm parent: ``python -m timonel.engines.local.warm.parent <descriptor> <key> <module>...``.

A fork server: it imports modules without initialising them, and forks agents that inherit them. It
has one thread, and refuses to fork if an import started another. Agents then belong to their jobs
and do not need the parent, which may exit before them.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

from timonel.engines.local.agent import run_agent
from timonel.engines.local.loop import Loop
from timonel.engines.local.processes import (
    MARKER,
    adopt_orphans,
    descendants,
    kill_all,
    mark_process,
    name_process,
    reap,
)
from timonel.engines.local.warm.client import DEFAULT_LINGER_S, MESSAGE_BYTES
from timonel.engines.local.warm.idle import IdleMark
from timonel.engines.local.warm.inside import run_module
from timonel.engines.local.warm.memory import is_scarce
from timonel.engines.local.warm.runtime import is_same_user
from timonel.engines.local.warm.stamps import loaded_files, write_stamps
from timonel.storage import exclusive

FIRST_REQUEST_S = 30.0
"""Seconds for the first request after the parent was found."""
_LOOK_S = 5.0
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

logger = logging.getLogger(__name__)


class WarmParent:
    """Serves requests on a socket until it was idle too long.

    Args:
        listener: Listening socket.
        path: Path of the socket.
        refusal: Why nothing can be forked, if an import failed.
    """

    def __init__(self, listener: socket.socket, path: Path, refusal: str | None) -> None:
        adopt_orphans()
        listener.setblocking(False)
        self._listener = listener
        self._path = path
        self._inode = _inode(path)
        self._idle = IdleMark(path)
        self._refusal = refusal
        self._linger_s = DEFAULT_LINGER_S
        self._agents: set[int] = set()
        self._waiting: set[socket.socket] = set()
        self._loop = Loop(_SIGNALS)
        self._loop.watch(listener.fileno(), self._accept)
        self._idle_at = time.monotonic() + FIRST_REQUEST_S
        self._wanted_until = 0.0

    def serve(self) -> None:
        """Serve until a signal, or until idle for too long.

        An idle parent exits sooner if others became idle after it, or if memory is scarce.
        """
        try:
            self._serve()
        finally:
            self._idle.clear()

    def _serve(self) -> None:
        while not self._is_over():
            signals = self._loop.wait(self._timeout_s())
            if {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}.intersection(signals):
                return
            if signal.SIGCHLD in signals:
                self._collect()

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
        self._wanted_until = time.monotonic() + FIRST_REQUEST_S
        self._idle_at = max(self._idle_at, self._wanted_until)
        self._loop.watch(connection.fileno(), lambda: self._answer(connection))

    def _answer(self, connection: socket.socket) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
        except OSError:
            message, descriptors = b"", []
        self._loop.forget(connection.fileno())
        self._waiting.discard(connection)
        if message and descriptors:
            answer = self._fork(json.loads(message), descriptors[0])
            try:
                connection.send(json.dumps(answer).encode())
            except OSError:
                logger.info("the asker has left")
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()

    def _fork(self, request: dict[str, object], descriptor: int) -> dict[str, object]:
        refusal = self._refusal or _too_many_threads()
        self._idle.clear()
        self._wanted_until = 0.0
        self._linger_s = float(str(request["linger_s"]))
        self._idle_at = time.monotonic() + self._linger_s
        if refusal is not None:
            logger.warning("refused: %s", refusal)
            self._idle.set()
            return {"refused": refusal}
        pid = os.fork()
        if pid == 0:
            mark_process({MARKER: str(request["token"])})
            run_agent(socket.socket(fileno=descriptor), run=run_module)
        self._agents.add(pid)
        return {"pid": pid}

    def _collect(self) -> None:
        for pid, _ in reap():
            if pid in self._agents:
                self._agents.discard(pid)
                self._idle_at = time.monotonic() + self._linger_s
                if not self._agents:
                    self._idle.set()
        # Orphans of a killed agent were adopted by this process.
        kill_all(lambda: descendants(os.getpid(), spare=self._agents))

    def _timeout_s(self) -> float:
        if self._agents:
            return _LOOK_S
        return min(_LOOK_S, max(0.0, self._idle_at - time.monotonic()))

    def _is_over(self) -> bool:
        if _inode(self._path) != self._inode:
            return True  # no client can find it any more
        if self._agents or self._waiting:
            return False
        if time.monotonic() < self._idle_at and not self._is_unwanted():
            return False
        # Parents are looked up under this lock; a request of an earlier look-up is accepted first.
        with exclusive(self._path.with_suffix(".lock")):
            self._accept()
            if self._waiting:
                return False
            self._path.unlink(missing_ok=True)
            return True

    def _is_unwanted(self) -> bool:
        if not self._idle.is_set or time.monotonic() < self._wanted_until:
            return False
        return self._idle.is_surplus or is_scarce()


def main(arguments: list[str]) -> int:
    """Import the modules, then serve."""
    number, key, *modules = arguments
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    name_process("warm parent")
    if not sys.flags.safe_path:
        sys.path.pop(0)  # this process's folder; each task inserts its own
    started_ns = time.time_ns()
    # Imports create almost no garbage, and collecting it takes a tenth of the import time of
    # TensorFlow.
    gc.disable()
    refusal = _import(modules)
    logger.info("imported %s in %.1f s", ", ".join(modules), (time.time_ns() - started_ns) / 1e9)
    write_stamps(Path.cwd() / f"{key}.files", loaded_files(started_ns))
    # Tasks share all current objects; a collection that visited them would copy every page.
    gc.collect()
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=int(number)) as listener:
        listener.set_inheritable(False)
        WarmParent(listener, Path.cwd() / f"{key}.sock", refusal).serve()
    return 0


def _import(modules: list[str]) -> str | None:
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # whatever the error, tasks then start without a warm parent
            logger.exception("cannot import %s", module)
            return f"importing {module} failed: {type(error).__name__}: {error}"
    return _too_many_threads()


def _too_many_threads() -> str | None:
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only a count is needed
    return None if threads == 1 else f"it has {threads} threads, and only one may be there to fork"


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
