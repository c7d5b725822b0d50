"""Load versions in plain child processes, one each, which are restarted after a crash.

For code that is not trusted to leave its process as it was: Python models, and batch predictions
that may run out of memory. A call is a pickled message over a connection of its own, with arrays
out of band.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from timonel.processes.backoff import CrashBackoff
from timonel.processes.spawn import describe_exit
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel, Runtime
from timonel.serving.runtimes.child_process import Loaded, Orders, receive, receive_loaded, send
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import Array
from timonel.serving.status import Code, NotStartedError, StatusError

_LOG = logging.getLogger(__name__)
_EXIT_S = 5.0


class ChildRuntime(Runtime):
    """Runtime decorator that loads versions in child processes. Thread-safe.

    Args:
        runtime: The wrapped runtime, as ``module:attribute``; called without arguments.
        threads: Concurrent calls of versions that do not declare a number.
        timeout_s: Kill a process if a call takes longer; None for never.
        log: File for the output of the processes; by default that of this process.
    """

    def __init__(
        self,
        runtime: str,
        *,
        threads: int = 2,
        timeout_s: float | None = None,
        log: Path | None = None,
    ) -> None:
        self.name = runtime
        self._threads = threads
        self._timeout_s = timeout_s
        self._log = log

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version in a process of its own."""
        name = f"{path.parent.name}/{path.name}"
        orders = Orders(self.name, name, str(path), settings, self._threads)
        return ChildModel(name, partial(_Child, orders, self._log), self._timeout_s)


class ChildModel(DeclaringModel):
    """A version in a child process.

    Calls in progress when it dies, and those until its restart, fail with ``UNAVAILABLE``.

    Args:
        start: Starts a process and returns once it has loaded; raises `StatusError`.
        timeout_s: Kill the process if a call takes longer; None for never.
    """

    def __init__(self, name: str, start: Callable[[], _Child], timeout_s: float | None) -> None:
        self._name = name
        self._start = start
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._restarts = 0
        self._outage: StatusError | None = None
        self._child: _Child | None = None
        started: Future[_Child] = Future()
        # The kernel kills the process once the thread that started it has ended.
        threading.Thread(target=self._keep, args=(started,), name=name, daemon=True).start()
        loaded = started.result().loaded
        self.signatures, self._platform = loaded.signatures, loaded.platform
        self.batchable, self.slots = loaded.batchable, loaded.slots

    @property
    def platform(self) -> str:
        """Platform of the version, as its process reports it."""
        return self._platform

    @property
    def restarts(self) -> int:
        """Number of restarts after crashes."""
        return self._restarts

    @property
    def outage(self) -> StatusError | None:
        """Reason why the version is unavailable; None while its process runs."""
        return self._outage

    @property
    def pid(self) -> int | None:
        """Process ID; None while no process runs."""
        child = self._child
        return None if child is None else child.process.pid

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Compute the outputs of a signature in the process."""
        child = self._child
        if child is None:
            # Whatever the reason, the client can do nothing about it.
            raise NotStartedError(self._reason())
        try:
            answer: dict[str, Array] | StatusError = child.call((signature, dict(inputs), outputs))
        except TimeoutError:
            child.process.wait()
            raise StatusError(Code.DEADLINE_EXCEEDED, child.end) from None
        except (EOFError, OSError):
            child.process.wait()
            shapes = ", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in inputs.items())
            _LOG.error("%s: the process ended during %s(%s)", self._name, signature, shapes)
            raise NotStartedError(child.end) from None
        if isinstance(answer, StatusError):
            raise copy.copy(answer)  # the frame, which has the inputs, refers to the other
        return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._closed.set()
            child, self._child = self._child, None
            self._outage = StatusError(Code.UNAVAILABLE, "The version has been unloaded.")
        if child is not None:
            child.close()

    def _reason(self) -> str:
        return "The process of this model starts." if self._outage is None else self._outage.message

    def _keep(self, started: Future[_Child]) -> None:
        """Start the process, and restart it whenever it ends."""
        crashes = CrashBackoff()
        while not self._closed.is_set():
            try:
                child = self._start()
            except BaseException as error:
                if not started.done():
                    started.set_exception(error)  # raised by the constructor
                    return
                if not isinstance(error, StatusError):
                    raise
                self._outage = error
            else:
                self._use(child, started)
            # Unlimited: otherwise, a few bad requests could take a model out of service.
            delay_s = crashes.add(time.monotonic())
            if not self._closed.is_set():
                _LOG.error("%s: %s Restarting in %g s", self._name, self._reason(), delay_s)
                self._closed.wait(delay_s)

    def _use(self, child: _Child, started: Future[_Child]) -> None:
        """Take calls until the process ends or the version is closed."""
        with self._lock:
            if self._closed.is_set():
                child.close()
                return
            self._restarts += started.done()
            self._child, self._outage = child, None
        if not started.done():
            started.set_result(child)
        if self._timeout_s is not None:
            limit = partial(child.limit_calls, self._timeout_s)
            threading.Thread(target=limit, name=self._name, daemon=True).start()
        child.process.wait()
        with self._lock:
            if self._closed.is_set():
                return  # `close` closes the child
            self._child, self._outage = None, StatusError(Code.UNAVAILABLE, child.end)
        child.close()


class _Child:
    """A process that has loaded a version; raises `StatusError` if it cannot."""

    def __init__(self, orders: Orders, log: Path | None) -> None:
        self._killed: str | None = None
        self._overdue: set[Connection] = set()
        self._began: dict[Connection, float] = {}
        self._closed = threading.Event()
        control, child_end = socket.socketpair()
        with child_end, contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else None
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", Orders.__module__, str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(child_end.fileno(),),
            )
        self._control = Connection(control.detach())
        self._idle: queue.LifoQueue[Connection | None] = queue.LifoQueue()
        try:
            send(self._control, orders)
            answer, calls = receive_loaded(self._control)
        except (EOFError, OSError):
            self.process.wait()
            answer = StatusError(Code.UNAVAILABLE, self.end)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, StatusError):
            self.close()
            raise answer
        self.loaded: Loaded = answer
        for each in calls:
            self._idle.put(each)

    @property
    def end(self) -> str:
        """How the process ended, as a sentence."""
        how = self._killed or describe_exit(self.process.wait())
        return f"The process of this model {how}."

    def limit_calls(self, timeout_s: float) -> None:
        """Kill the process once a call takes longer; returns when it has ended."""
        delay_s = timeout_s
        while not self._closed.wait(delay_s):
            due = time.monotonic() - timeout_s
            began = self._began.copy()
            self._overdue = {each for each, start in began.items() if start <= due}
            if self._overdue:
                self._killed = f"was killed because a request took longer than {timeout_s:g} s"
                self.process.kill()
                return
            delay_s = min(began.values(), default=due + timeout_s) - due

    def call(self, request: tuple[Any, ...]) -> Any:
        """Send a request over an idle connection and return the answer."""
        connection = self._idle.get()
        if connection is None:
            self._idle.put(None)
            raise EOFError
        self._began[connection] = time.monotonic()
        try:
            send(connection, request)
            return receive(connection)
        except (EOFError, OSError) as error:
            raise TimeoutError if connection in self._overdue else error from None
        finally:
            del self._began[connection]
            self._idle.put(connection)
            if self._closed.is_set():
                self._close_idle()

    def close(self) -> None:
        """End the process. Idempotent."""
        self._control.close()
        try:
            self.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._closed.set()
        self._close_idle()

    def _close_idle(self) -> None:
        """Close the connections that no call uses, and tell the calls that wait for one.

        A number that is closed under a call may already be another file's when it reads.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                if (connection := self._idle.get_nowait()) is not None:
                    connection.close()
        self._idle.put(None)
