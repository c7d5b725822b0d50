"""Zygote process: ``python -m timonel.processes.zygote_process <descriptor> <key> <module>...``.

It imports modules without initialising them, and forks children that inherit them: agents of tasks,
and servers. Children do not need the zygote, which may exit before them.

A request is a packet of JSON with the descriptor of the child's connection. The answers, on the
connection of the request, are ``pid`` or ``refused``, then ``status`` once the child has ended.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from timonel.logs import configure_logging
from timonel.processes.loop import Loop
from timonel.processes.memory import is_memory_scarce
from timonel.processes.tree import (
    adopt_orphans,
    descendants,
    kill_all,
    mark_process,
    name_process,
    reap,
)
from timonel.processes.zygote import (
    BACKLOG,
    MESSAGE_BYTES,
    ZygoteError,
    extra_threads,
    import_modules,
    is_same_user,
    preload,
    send,
)
from timonel.processes.zygote_client import DEFAULT_LINGER_S
from timonel.processes.zygote_key import loaded_files, write_stamps
from timonel.storage import exclusive

FIRST_REQUEST_S = 30.0
"""Seconds for the first request after the zygote was found."""
_LOOK_S = 5.0
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

logger = logging.getLogger(__name__)


class Zygote:
    """Forks children on request until it was idle too long, or memory is scarce.

    Args:
        failure: Why nothing can be forked, if an import failed.
    """

    def __init__(self, listener: socket.socket, path: Path, failure: str | None) -> None:
        adopt_orphans()
        listener.setblocking(False)
        self._loop = Loop((signal.SIGCHLD, *_STOP_SIGNALS))
        self._listener = listener
        self._path = path
        self._inode = _inode(path)
        self._failure = failure
        self._linger_s = DEFAULT_LINGER_S
        self._waiting: set[socket.socket] = set()
        self._children: dict[int, socket.socket] = {}
        """Connections of the requests by the child's PID."""
        self._loop.watch(listener.fileno(), self._accept)
        # A request is expected until then, however scarce memory is.
        self._expected_until = self._idle_at = time.monotonic() + FIRST_REQUEST_S

    def serve(self) -> None:
        """Serve until a signal, or until idle for too long."""
        while not self._is_over():
            signals = self._loop.wait(self._timeout_s())
            if _STOP_SIGNALS.intersection(signals):
                return
            if signal.SIGCHLD in signals:
                if self._collect():
                    self._idle_at = time.monotonic() + self._linger_s
                # Orphans of a killed child were adopted by this process.
                kill_all(lambda: descendants(os.getpid(), exclude=self._children))

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
        self._loop.watch(connection.fileno(), lambda: self._receive(connection))

    def _receive(self, connection: socket.socket) -> None:
        self._loop.forget(connection.fileno())
        self._waiting.discard(connection)
        try:
            message, descriptors, _, _ = socket.recv_fds(
                connection, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            message, descriptors = b"", []
        if not message or not descriptors:  # a probe
            connection.close()
            return
        with socket.socket(fileno=descriptors[0]) as child_end:
            self._answer(json.loads(message), child_end, connection)

    def _answer(
        self, request: dict[str, Any], child_end: socket.socket, connection: socket.socket
    ) -> None:
        self._linger_s = float(request["linger_s"])
        self._expected_until, self._idle_at = 0.0, time.monotonic() + self._linger_s
        refusal = self._failure or extra_threads()
        try:
            pid = None if refusal else self._fork(request, child_end, connection)
        except OSError as error:
            pid, refusal = None, str(error)
        if pid is None:
            send(connection, {"refused": refusal})
            connection.close()
            return
        descriptor = os.pidfd_open(pid)  # not reaped yet, so the PID is still the child's
        send(connection, {"pid": pid}, descriptor)
        os.close(descriptor)
        self._children[pid] = connection

    def _fork(
        self, request: dict[str, Any], child_end: socket.socket, connection: socket.socket
    ) -> int:
        pid = os.fork()
        if pid != 0:
            return pid
        try:
            # What a child must not share with its siblings.
            self._loop.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (connection, *self._children.values()):
                each.close()
            _run_child(request, child_end)
        except BaseException:  # noqa: BLE001 - it ends here, whatever it was
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)  # no code of the zygote may continue in this process

    def _collect(self) -> bool:
        """Reap and report ended children; return whether there were any."""
        found = False
        for pid, status in reap():
            if (connection := self._children.pop(pid, None)) is not None:
                found = True
                send(connection, {"status": status})
                connection.close()
        return found

    def _timeout_s(self) -> float:
        if self._children:
            return _LOOK_S
        return min(_LOOK_S, max(0.0, self._idle_at - time.monotonic()))

    def _is_over(self) -> bool:
        if _inode(self._path) != self._inode:
            return True  # no client can find it any more
        now = time.monotonic()
        if self._children or self._waiting:
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


def _run_child(request: dict[str, Any], connection: socket.socket) -> NoReturn:
    mark_process(request["marks"])
    module, _, name = request["entry"].partition(":")
    getattr(importlib.import_module(module), name)(connection)
    raise ZygoteError(f"{request['entry']} returned")


def main(arguments: list[str]) -> int:
    """Import the modules, then serve."""
    number, key, *modules = arguments
    configure_logging(format_="%(asctime)s %(levelname)s %(message)s")
    name_process("zygote")
    if not sys.flags.safe_path:
        sys.path.pop(0)  # this process's folder; each task inserts its own
    with socket.socket(fileno=int(number)) as listener:
        listener.set_inheritable(False)
        listener.listen(BACKLOG)  # clients now see the credentials of this process
        started_ns = time.time_ns()
        failure = preload(lambda: import_modules(modules))
        took_s = (time.time_ns() - started_ns) / 1e9
        logger.info("imported %s in %.1f s", ", ".join(modules), took_s)
        write_stamps(Path.cwd() / f"{key}.files", loaded_files(started_ns))
        Zygote(listener, Path.cwd() / f"{key}.sock", failure).serve()
    return 0


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
