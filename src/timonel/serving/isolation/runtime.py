"""Run each version in its own process, and restart it after a crash."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from timonel.processes.backoff import backoff_s
from timonel.serving.batching.queue import Observer
from timonel.serving.isolation.connection import is_small
from timonel.serving.isolation.process import ComputeProcess, Outputs
from timonel.serving.isolation.zygote_client import ForkOrder, ZygoteClient
from timonel.serving.runtimes.base import LoadedModel, Runtime, ScheduledModel, refused
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.runtime import ComputeSettings
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_FIRST_DELAY_S, _MAX_DELAY_S = 0.5, 10.0
_CRASH_WINDOW_S = 300.0
"""Time after which a crash no longer counts."""

OnEnd = Callable[[ComputeProcess, StatusError], None]
Start = Callable[[OnEnd], ComputeProcess]


class ProcessRuntime(Runtime):
    """Runtime decorator that loads versions in forked processes. Thread-safe.

    Args:
        runtime: The wrapped runtime, as ``module:attribute``; called without arguments.
        settings: The processes' settings.
        observer: Returns the observer for batches of the version in a folder; it is called in a
            thread that receives responses.
        threads: Concurrent requests per process without batching.
        close_timeout_s: Seconds for in-flight requests to finish when a version is unloaded.
        log: File for the output of the processes; by default that of this process.
    """

    def __init__(
        self,
        runtime: str,
        settings: ComputeSettings | None = None,
        *,
        observer: Callable[[Path], Observer] | None = None,
        threads: int = 2,
        close_timeout_s: float = 30.0,
        log: Path | None = None,
    ) -> None:
        self.name = f"{runtime} in processes"
        self._log = log
        self._runtime = runtime
        self._settings = settings or ComputeSettings()
        self._observer = observer
        self._threads = threads
        self._close_timeout_s = close_timeout_s
        self._lock = threading.Lock()
        self._zygote: ZygoteClient | None = None
        self._closed = False

    def start(self) -> None:
        """Start preparing in the background. Idempotent."""
        self._live_zygote()

    def prepare(self) -> None:
        """Wait until the zygote process has imported the runtime.

        Raises:
            StatusError: The import failed.
        """
        self._live_zygote().wait_until_ready()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version in its own process."""
        start = partial(self._fork, path, settings)
        return ProcessModel(str(path), start, self._close_timeout_s)

    def close(self) -> None:
        """End the zygote process, and with it all loaded versions."""
        with self._lock:
            zygote, self._zygote = self._zygote, None
            self._closed = True
        if zygote is not None:
            zygote.close()

    def _fork(self, path: Path, settings: RuntimeSettings, on_end: OnEnd) -> ComputeProcess:
        order = ForkOrder(
            name=f"{path.parent.name}/{path.name}",
            folder=str(path),
            settings=settings.model_dump(mode="json"),
            threads=self._threads,
            memory_limit=self._settings.memory_mib << 20,
        )
        zygote = self._live_zygote()
        observer = None if self._observer is None else self._observer(path)
        return ComputeProcess(zygote, order, on_end, self._settings.hang_timeout_s, observer)

    def _live_zygote(self) -> ZygoteClient:
        with self._lock:
            if self._closed:
                raise StatusError(Code.UNAVAILABLE, "the server is stopping")
            if self._zygote is not None and self._zygote.is_over:
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = ZygoteClient(self._runtime, self._log)
            return self._zygote


class ProcessModel(ScheduledModel):
    """A model in another process, which is replaced after a crash.

    Requests in flight at a crash, and those until the restart, fail with ``UNAVAILABLE`` at once,
    even if a restart failed with another code, which `outage` has. They do not wait for the load,
    so they never delay requests to other models.

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
        self._crashes: list[float] = []
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

    @property
    def queued(self) -> int:
        """Number of requests that wait to be computed."""
        process = self._process
        return 0 if process is None else process.queued

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
            # Whatever the reason, the client can do nothing about it.
            return refused(StatusError(Code.UNAVAILABLE, self._unavailable.message))
        return process.submit(signature, inputs, outputs, deadline)

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
            now = time.monotonic()
            recent = [at for at in self._crashes if now - at < _CRASH_WINDOW_S]
            self._crashes = [*recent, now]
            # Unlimited: otherwise, five bad requests could take a model out of service for good.
            delay_s = backoff_s(len(self._crashes), _FIRST_DELAY_S, _MAX_DELAY_S)
            _LOG.error("%s: %s Restarting in %g s", self._name, cause.message, delay_s)
            if self._closed.wait(delay_s):
                return
            try:
                process = self._start(self._replace)
            except StatusError as error:
                cause = self._unavailable = error
                continue
            if self._adopt(process, restarts=1):
                return
            cause = process.end or cause
