"""A version in its own process, restarted after a crash."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from timonel.serving.isolation.backoff import after_crash
from timonel.serving.isolation.connection import is_small
from timonel.serving.isolation.process import ComputeProcess
from timonel.serving.isolation.responses import Answer
from timonel.serving.runtimes.base import ScheduledModel
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)

Outputs = dict[str, Array]
OnEnd = Callable[[ComputeProcess, StatusError], None]
Start = Callable[[OnEnd], ComputeProcess]


class ProcessModel(ScheduledModel):
    """A model in another process, which is replaced after a crash.

    Requests in flight at a crash, and those until the restart, fail with ``UNAVAILABLE`` at once.
    They do not wait for the load, so they never delay requests to other models.

    Args:
        name: The name for log messages.
        start: Starts a process and returns once it has loaded; raises `StatusError`.
        close_timeout_s: Seconds for in-flight requests to finish when the version is unloaded.

    Raises:
        StatusError: The version cannot be loaded.
    """

    def __init__(self, name: str, start: Start, close_timeout_s: float) -> None:
        self._name = name
        self._start = start
        self._close_timeout_s = close_timeout_s
        self._lock = threading.Lock()
        self._crashes: tuple[float, ...] = ()
        self._restarts = 0
        self._closed = threading.Event()
        self._process: ComputeProcess | None = None
        self._unavailable = StatusError(Code.UNAVAILABLE, "The process of this model is starting.")
        process = start(self._replace)
        self.signatures = process.signatures
        self._platform = process.platform
        self._adopt(process)

    @property
    def pid(self) -> int | None:
        """Process ID; None while no process runs."""
        process = self._process
        return None if process is None else process.pid

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
        return self._unavailable if self._process is None else None

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[Outputs]:
        """Request the outputs of a signature; see `ComputeProcess.submit`."""
        process = self._process
        if process is None:
            answer = Answer(-1, deadline, lambda _: None)
            answer.give(self._unavailable)
            return answer
        return process.submit(signature, inputs, outputs, deadline)

    def run(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Outputs:
        """Compute the outputs of a signature; see `submit`."""
        return self.submit(signature, inputs, outputs, deadline).result()

    def allocate(self, shape: Sequence[int], dtype: str) -> Array:
        """Return an uninitialized array that `submit` sends without a copy.

        Args:
            shape: The array's shape.
            dtype: A key of `NUMPY_TYPES` other than ``DT_STRING``.

        Raises:
            StatusError: No shared memory is free.
        """
        process = self._process
        # Without a process, `submit` will reject the request.
        if process is None or is_small(shape, dtype):
            return super().allocate(shape, dtype)
        return process.allocate(shape, dtype)

    def close(self) -> None:
        """Answer in-flight requests, then unload."""
        with self._lock:
            self._closed.set()
            self._unavailable = StatusError(Code.UNAVAILABLE, "The version has been unloaded.")
            process, self._process = self._process, None
        if process is not None:
            process.close(self._close_timeout_s)

    def _adopt(self, process: ComputeProcess, restarts: int = 0) -> bool:
        """Send requests to this process; return False if it has died."""
        with self._lock:
            if self._closed.is_set():
                self._process = None
            elif process.end is not None:
                return False
            else:
                self._process = process
                self._restarts += restarts
                return True
        process.close(0.0)
        return True

    def _replace(self, process: ComputeProcess, cause: StatusError) -> None:
        """Start another process. Runs in the receiving thread of the dead one."""
        with self._lock:
            if process is not self._process:
                return  # it died before it was adopted, which `_adopt` detects
            self._process = None
            self._unavailable = cause
        in_flight = "; ".join(process.in_flight) or "none"
        _LOG.error("%s: Requests in flight: %s", self._name, in_flight)
        self._restart(cause)

    def _restart(self, cause: StatusError) -> None:
        while True:
            restart = after_crash(self._crashes, time.monotonic())
            self._crashes = restart.crashes
            _LOG.error("%s: %s Restarting in %g s", self._name, cause.message, restart.delay_s)
            if self._closed.wait(restart.delay_s):
                return
            try:
                process = self._start(self._replace)
            except StatusError as error:
                cause = self._unavailable = error
                continue
            if self._adopt(process, restarts=1):
                return
            cause = process.end or cause
