"""Client of the zygote process, for the server."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

from timonel.serving.isolation.zygote_requests import (
    MESSAGE_BYTES,
    ForkOrder,
    WarmOrders,
    environment,
)
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_END_S = 5.0
_ENDS_KEPT = 1024


class ZygoteClient:
    """A zygote process that forks compute processes; owned by this object. Thread-safe.

    Starting it takes as long as importing the runtime's modules; `connect` waits for that.

    Args:
        runtime: The runtime's factory, as ``module:attribute``.
    """

    def __init__(self, runtime: str) -> None:
        self._tokens = itertools.count()
        self._forks: dict[int, Future[int]] = {}
        self._ends: dict[int, int] = {}
        self._changed = threading.Condition()
        self._ready = False
        self._refusal: str | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "timonel.serving.isolation.zygote",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                env=environment(os.environ),
                pass_fds=(theirs.fileno(),),
            )
        self._send(asdict(WarmOrders(runtime, sys.path)))
        self._reader = threading.Thread(target=self._read, name="warm parent", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process ID of the zygote."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the zygote can no longer fork."""
        return self._refusal is not None

    def wait_until_ready(self) -> None:
        """Block until the zygote can fork.

        Raises:
            StatusError: It failed, and will never be able to fork.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._refusal is not None)
            if self._refusal is not None:
                raise StatusError(Code.FAILED_PRECONDITION, self._refusal)

    def connect(self, order: ForkOrder) -> tuple[socket.socket, int]:
        """Fork a compute process; return a connection to it, and its PID.

        Raises:
            StatusError: The process cannot be forked.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                return ours, self._fork(order, theirs)
        except BaseException:
            ours.close()
            raise

    def cause(self, pid: int, timeout_s: float) -> str | None:
        """Describe how a forked process ended; None after the timeout."""
        status = self.wait(pid, timeout_s)
        if status is not None:
            return ended(os.waitstatus_to_exitcode(status))
        return "ended together with the parent of all such processes" if self.is_over else None

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return a forked process's wait status; None after the timeout."""
        with self._changed:
            self._changed.wait_for(
                lambda: pid in self._ends or self._refusal is not None, timeout_s
            )
            return self._ends.pop(pid, None)

    def kill(self, pid: int) -> None:
        """Kill a forked process. Idempotent."""
        self._send({"kill": pid})

    def close(self) -> None:
        """End the zygote and all processes it has forked."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()

    def _fork(self, order: ForkOrder, connection: socket.socket) -> int:
        self.wait_until_ready()
        answer: Future[int] = Future()
        with self._changed:
            token = next(self._tokens)
            self._forks[token] = answer
            if self._refusal is None:
                self._send(replace(order, token=token).as_json(), connection)
            else:
                self._forks.pop(token).set_exception(_gone(self._refusal))
        return answer.result()

    def _send(self, content: dict[str, Any], passed: socket.socket | None = None) -> None:
        message = json.dumps(content).encode()
        # If the zygote is gone, the reader notices.
        with contextlib.suppress(OSError):
            if passed is None:
                self._control.send(message)
            else:
                socket.send_fds(self._control, [message], [passed.fileno()])

    def _read(self) -> None:
        while message := self._receive():
            with self._changed:
                self._take(json.loads(message))
                self._changed.notify_all()
        code = self._process.wait()
        with self._changed:
            self._refusal = self._refusal or f"the parent of all compute processes {ended(code)}"
            for answer in self._forks.values():
                answer.set_exception(_gone(self._refusal))
            self._forks.clear()
            self._changed.notify_all()

    def _receive(self) -> bytes:
        try:
            return self._control.recv(MESSAGE_BYTES)
        except OSError:
            return b""

    def _take(self, content: dict[str, Any]) -> None:
        if "ready" in content:
            self._ready = True
        elif "ended" in content:
            self._ends[content["ended"]] = content["status"]
            while len(self._ends) > _ENDS_KEPT:
                del self._ends[next(iter(self._ends))]
        elif "token" not in content:
            self._refusal = content["refused"]
        elif "pid" in content:
            # The PID may have belonged to an earlier process.
            self._ends.pop(content["pid"], None)
            self._forks.pop(content["token"]).set_result(content["pid"])
        else:
            self._forks.pop(content["token"]).set_exception(_gone(content["refused"]))


def ended(code: int) -> str:
    """Describe an exit code; negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _gone(reason: str) -> StatusError:
    return StatusError(Code.UNAVAILABLE, f"no compute process can be started: {reason}")
