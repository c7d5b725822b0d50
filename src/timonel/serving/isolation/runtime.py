"""A runtime that runs each version in its own process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from timonel.serving.batching.observation import Observer
from timonel.serving.isolation.isolated_model import OnEnd, ProcessModel
from timonel.serving.isolation.process import ComputeProcess
from timonel.serving.isolation.zygote_client import ZygoteClient
from timonel.serving.isolation.zygote_requests import ForkOrder
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.isolation import ComputeSettings
from timonel.serving.status import Code, StatusError


class ProcessRuntime(Runtime):
    """Runtime decorator that loads versions in forked processes. Thread-safe.

    Args:
        runtime: The wrapped runtime, as ``module:attribute``; called without arguments.
        settings: The processes' settings.
        observer: Returns the observer for batches of the version in a folder; it is called in a
            thread that receives responses.
        threads: Concurrent requests per process without batching.
        close_timeout_s: Seconds for in-flight requests to finish when a version is unloaded.
    """

    def __init__(
        self,
        runtime: str,
        settings: ComputeSettings | None = None,
        *,
        observer: Callable[[Path], Observer] | None = None,
        threads: int = 2,
        close_timeout_s: float = 30.0,
    ) -> None:
        self.name = f"{runtime} in processes"
        self._runtime = runtime
        self._settings = settings or ComputeSettings()
        self._observer = observer
        self._threads = threads
        self._close_timeout_s = close_timeout_s
        self._lock = threading.Lock()
        self._parent: ZygoteClient | None = None
        self._closed = False

    def start(self) -> None:
        """Start preparing in the background. Idempotent."""
        self._living_parent()

    def prepare(self) -> None:
        """Wait until the zygote process has imported the runtime.

        Raises:
            StatusError: The import failed.
        """
        self._living_parent().wait_until_ready()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version in its own process."""
        start = partial(self._fork, path, settings)
        return ProcessModel(str(path), start, self._close_timeout_s)

    def close(self) -> None:
        """End the zygote process, and with it all loaded versions."""
        with self._lock:
            parent, self._parent = self._parent, None
            self._closed = True
        if parent is not None:
            parent.close()

    def _fork(self, path: Path, settings: RuntimeSettings, on_end: OnEnd) -> ComputeProcess:
        order = ForkOrder(
            token=0,
            name=f"{path.parent.name}/{path.name}",
            folder=str(path),
            runtime=settings.model_dump(mode="json"),
            threads=self._threads,
            memory_limit=self._settings.memory_mib << 20,
        )
        parent = self._living_parent()
        observer = None if self._observer is None else self._observer(path)
        return ComputeProcess(parent, order, on_end, self._settings.hang_timeout_s, observer)

    def _living_parent(self) -> ZygoteClient:
        with self._lock:
            if self._closed:
                raise StatusError(Code.UNAVAILABLE, "the server is stopping")
            if self._parent is not None and self._parent.is_over:
                self._parent.close()
                self._parent = None
            if self._parent is None:
                self._parent = ZygoteClient(self._runtime)
            return self._parent
