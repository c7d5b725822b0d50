"""Client of a server's zygote."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timonel.processes.spawn import describe_exit
from timonel.processes.zygote import (
    MESSAGE_BYTES,
    ForkedChild,
    ZygoteError,
    single_threaded_environment,
)
from timonel.serving.isolation.warm_client import connect_warm
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ForkOrder:
    """Request for a compute process.

    Args:
        name: The name of the process.
        folder: The version's folder.
        settings: `RuntimeSettings` as JSON values.
        threads: Concurrent requests.
        memory_limit: Bytes of shared memory for responses.
    """

    name: str
    folder: str
    settings: dict[str, Any]
    threads: int
    memory_limit: int


class ZygoteClient:
    """A zygote that forks compute processes; owned by this object. Thread-safe.

    Starting it takes as long as importing the runtime's modules; `fork` waits for that. A warm
    zygote (`timonel.serving.isolation.warm`), if there is a suitable one, has done that already.

    Args:
        runtime: The runtime's factory, as ``module:attribute``.
        log: File for the output of the processes; by default that of this process.
    """

    def __init__(self, runtime: str, log: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._log = log
        self._is_ready = False
        self._refusal: str | None = None
        environment = single_threaded_environment(os.environ)
        changed = [name for name in environment if environment[name] != os.environ.get(name)]
        self._settings = {
            "runtime": runtime,
            "path": sys.path,
            "environment": {name: os.environ.get(name) for name in changed},
        }
        self._process: subprocess.Popen[bytes] | None = None
        warm = connect_warm(self._settings)
        if warm is None:
            self._spawn()
        else:
            self._control = warm

    def _spawn(self) -> None:
        self._control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        module = "timonel.serving.isolation.zygote"
        with contextlib.ExitStack() as stack:
            stack.enter_context(child_end)
            log = stack.enter_context(self._log.open("ab")) if self._log else None
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=single_threaded_environment(os.environ),
                pass_fds=(child_end.fileno(),),
            )
        with contextlib.suppress(OSError):  # it is gone, which `wait_until_ready` reports
            self._control.send(json.dumps(self._settings).encode())

    @property
    def pid(self) -> int | None:
        """Process ID of the zygote; None if a warm zygote forked it."""
        return None if self._process is None else self._process.pid

    @property
    def is_warm(self) -> bool:
        """Whether it was forked by a warm zygote."""
        return self._process is None

    @property
    def is_over(self) -> bool:
        """Whether the zygote can no longer fork."""
        poller = select.poll()
        poller.register(self._control, 0)
        return self._refusal is not None or bool(poller.poll(0))

    def wait_until_ready(self) -> None:
        """Block until the zygote can fork.

        Raises:
            StatusError: It failed, and will never be able to fork.
        """
        with self._lock:
            if not self._is_ready and self._refusal is None:
                self._refusal = self._receive_refusal()
                self._is_ready = self._refusal is None
            if self._refusal is not None:
                raise StatusError(Code.FAILED_PRECONDITION, self._refusal)

    def fork(self, order: ForkOrder) -> tuple[socket.socket, ForkedChild]:
        """Fork a compute process; return a connection to it, and the process.

        Raises:
            StatusError: The process cannot be forked.
        """
        self.wait_until_ready()
        server_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = ForkedChild(answers)
        try:
            with child_end, zygote_end:
                message = json.dumps(asdict(order)).encode()
                descriptors = [child_end.fileno(), zygote_end.fileno()]
                socket.send_fds(self._control, [message], descriptors)
            child.wait_for_pid()
        except BaseException as error:
            server_end.close()
            child.close()
            if isinstance(error, OSError | ZygoteError):
                raise StatusError(
                    Code.UNAVAILABLE, f"cannot start a compute process: {error}"
                ) from error
            raise
        return server_end, child

    def close(self) -> None:
        """End the zygote and all processes it has forked."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            try:
                self._process.wait(_CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        with self._lock:
            self._control.close()

    def _receive_refusal(self) -> str | None:
        """Wait for the zygote's first message; return why it cannot fork, if so."""
        answer = self._receive()
        if self._process is None and "ready" not in answer:
            _LOG.info("no warm zygote: %s", answer.get("refused", "it ended"))
            self._control.close()
            self._spawn()
            answer = self._receive()
        if answer:
            refusal: str | None = answer.get("refused")
            return refusal
        code = 0 if self._process is None else self._process.wait()
        return f"the zygote of the compute processes {describe_exit(code)}"

    def _receive(self) -> dict[str, Any]:
        """Receive the zygote's first message; an empty one if it has ended."""
        try:
            message = self._control.recv(MESSAGE_BYTES)
        except OSError:
            message = b""
        answer: dict[str, Any] = json.loads(message or b"{}")
        return answer
