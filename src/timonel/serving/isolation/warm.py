"""Warm zygote: ``python -m timonel.serving.isolation.warm SOCKET RUNTIME PORT``.

A process that has imported a runtime and forks zygotes for servers, which otherwise import it
themselves: with TensorFlow, most of the time until a server's first answer. Servers find it by the
environment variable ``TIMONEL_WARM_ZYGOTE``. The zygotes it forks share its pages and outlive it;
each ends with its server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from timonel.processes.tree import (
    MARKER,
    RESERVED,
    RESERVED_BYTES,
    mark_process,
    name_process,
)
from timonel.processes.zygote import (
    MESSAGE_BYTES,
    ZygoteError,
    extra_threads,
    is_same_user,
    preload,
    single_threaded_environment,
)
from timonel.serving.isolation.warm_client import imports
from timonel.serving.isolation.zygote import ComputeZygote, ignore_signals, prepared
from timonel.serving.memory import give_back
from timonel.serving.runtimes.base import Runtime

_BACKLOG = 128
_MARKS = (MARKER, "TIMONEL_SUPERVISOR", "TIMONEL_REPLICA")
_IMPORTS = "TIMONEL_IMPORTS"
_LOG = logging.getLogger(__name__)


class WarmZygote:
    """Forks a zygote for each server that connects.

    Args:
        reference: The runtime's factory, as ``module:attribute``.
        runtime: The runtime, prepared.
        imported: What it was imported with, see `imports`.
    """

    def __init__(self, reference: str, runtime: Runtime, imported: dict[str, str]) -> None:
        self._reference = reference
        self._runtime = runtime
        self._imported = imported

    def serve(self, listener: socket.socket, health: socket.socket) -> None:
        """Serve for ever; connections to ``health`` are accepted and closed."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the zygotes
        while True:
            readable, _, _ = select.select([listener, health], [], [])
            for each in readable:
                with contextlib.suppress(OSError):
                    connection, _ = each.accept()
                    with connection:
                        if each is listener and is_same_user(connection):
                            self._fork(connection, (listener, health))

    def _fork(self, connection: socket.socket, listeners: tuple[socket.socket, ...]) -> None:
        if os.fork() != 0:
            return
        try:
            for each in listeners:
                each.close()
            self._run(connection)
        except BaseException:  # noqa: BLE001 - nothing may return to the loop of the parent
            _LOG.exception("the zygote failed")
        finally:
            os._exit(0)  # no code of the warm zygote may continue in this process

    def _run(self, control: socket.socket) -> None:
        """Be the zygote of a server until the connection ends."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
        request: dict[str, Any] = json.loads(message)
        try:
            self._check(request)
        except ZygoteError as error:
            control.send(json.dumps({"refused": str(error)}).encode())
            return
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        environ = request["environ"]
        os.environ.clear()
        os.environ.update({**environ, **single_threaded_environment(environ)})
        os.chdir(request["cwd"])
        sys.path[:] = request["path"]
        mark_process({name: environ[name] for name in _MARKS if name in environ})
        ignore_signals()
        name_process("timonel zygote")
        control.set_inheritable(False)
        control.send(json.dumps({"ready": True}).encode())
        ComputeZygote(control, self._runtime, request["environment"]).serve()

    def _check(self, request: dict[str, Any]) -> None:
        if request["runtime"] != self._reference:
            raise ZygoteError(f"it has imported {self._reference}, not {request['runtime']}")
        if [path for path in request["path"] if path != request["cwd"]] != sys.path:
            raise ZygoteError("it has another sys.path")
        if request["imports"] != self._imported:
            raise ZygoteError("it has other variables that libraries read when imported")
        if threads := extra_threads():
            raise ZygoteError(threads)


def main(path: str, reference: str, port: int) -> NoReturn:
    """Import the runtime, then listen."""
    environment = single_threaded_environment(os.environ)
    if RESERVED not in os.environ:
        # Libraries read these when they are loaded; the reserved one is for `mark_process`.
        environment |= {RESERVED: " " * RESERVED_BYTES, _IMPORTS: json.dumps(imports())}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    name_process("timonel warm")
    sys.path[:] = [path for path in sys.path if path != str(Path.cwd())]
    runtime = preload(lambda: prepared(reference))
    give_back()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        socket.create_server(("127.0.0.1", port)) as health,
    ):
        aside = Path(f"{path}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        listener.bind(str(aside))
        aside.chmod(0o600)
        listener.listen(_BACKLOG)
        aside.replace(path)
        _LOG.info("imported %s", reference)
        WarmZygote(reference, runtime, json.loads(os.environ[_IMPORTS])).serve(listener, health)
    raise AssertionError("it serves for ever")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
