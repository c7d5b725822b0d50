"""A version in a process of its own, which is restarted when it crashes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from timonel.serving.isolation.connection import is_small
from timonel.serving.isolation.process import ComputeProcess
from timonel.serving.isolation.responses import Answer
from timonel.serving.isolation.restart_policy import after_crash
from timonel.serving.runtimes.base import ScheduledModel
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)

Outputs = dict[str, Array]
OnEnd = Callable[[ComputeProcess, StatusError], None]
Start = Callable[[OnEnd], ComputeProcess]


class ProcessModel(ScheduledModel):
    """Sends requests to a process, and replaces the process when it has died.

    What was under way when it died, and what is asked until it is back, is answered
    ``UNAVAILABLE`` at once: nobody waits for a load, least of all those who want another model.

    Args:
        name: For messages.
        start: Starts a process and returns when it has loaded; raises `StatusError`.
        close_timeout_s: Seconds that requests under way have when the version is unloaded.

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
        """The process; none while there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def platform(self) -> str:
        """What the version is, as its process has told."""
        return self._platform

    @property
    def restarts(self) -> int:
        """How often a process has taken the place of one that died."""
        return self._restarts

    @property
    def outage(self) -> StatusError | None:
        """Why there is no process at present; none while there is one."""
        return self._unavailable if self._process is None else None

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[Outputs]:
        """Ask for the outputs of a signature; see `ComputeProcess.submit`."""
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
        """Return an array, with any content, that `submit` sends without copying it.

        Args:
            shape: Its sizes.
            dtype: A key of `NUMPY_TYPES` other than ``DT_STRING``.

        Raises:
            StatusError: There is no shared memory.
        """
        process = self._process
        # Without one it will be refused, but by whoever runs the model.
        if process is None or is_small(shape, dtype):
            return super().allocate(shape, dtype)
        return process.allocate(shape, dtype)

    def close(self) -> None:
        """Unload; what is under way is answered first."""
        with self._lock:
            self._closed.set()
            self._unavailable = StatusError(Code.UNAVAILABLE, "The version has been unloaded.")
            process, self._process = self._process, None
        if process is not None:
            process.close(self._close_timeout_s)

    def _adopt(self, process: ComputeProcess, restarts: int = 0) -> bool:
        """Send requests to a process from now on; false if it has died meanwhile."""
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
        """Start another process. Runs in the thread of the one that has died."""
        with self._lock:
            if process is not self._process:
                return  # it died before it was adopted: whoever started it sees that
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
