"""Telemetry of a server process: metrics, traces, request logs and warm-up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

from timonel.serving.asgi import App
from timonel.serving.batching.request import BatchObservation, Observer
from timonel.serving.inference.warmup import WarmUp, warmed
from timonel.serving.manager.buckets.cache import cache_of
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.manager.sources import folder_of
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings import ModelSettings, RequestLogSettings, ServerSettings
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.monitor import Monitor, count_versions, memory_bytes
from timonel.serving.telemetry.prometheus import MetricsApp
from timonel.serving.telemetry.request_log import RequestLog
from timonel.serving.telemetry.series import BatchKey, PathKey
from timonel.serving.telemetry.tracing import make_tracer

Load = Callable[[Path], LoadedModel]


class Telemetry:
    """Instruments of a server.

    Args:
        settings: The server's settings.
        catalogue: The versions in memory.
        models: Returns the current configuration.

    Raises:
        MissingExtraError: Tracing is enabled, but OpenTelemetry is not installed.
    """

    def __init__(
        self,
        settings: ServerSettings,
        catalogue: Catalogue,
        models: Callable[[], Sequence[ModelSettings]],
    ) -> None:
        self._settings = settings
        self._models = models
        self._cache = cache_of(settings.load)
        self._logs: tuple[Sequence[ModelSettings], dict[str, RequestLogSettings | None]] = (), {}
        self._provider: Any = None
        tracer = None
        if settings.monitoring.tracing:
            tracer, self._provider = make_tracer()
        self.monitor = Monitor(partial(count_versions, catalogue), memory_bytes, tracer)
        self.recorder = RequestLog(self._log_of, self.monitor.logged)

    def loading(self, load: Load) -> Load:
        """Wrap a ``load`` to measure it and warm up the loaded version."""

        def measured(path: Path) -> LoadedModel:
            began = time.monotonic()
            code = Code.UNKNOWN
            try:
                model = load(path)
                code = Code.OK
            except StatusError as error:
                code = error.code
                raise
            else:
                return model
            finally:
                self.monitor.loaded(self._key(path, code), time.monotonic() - began)

        if not self._settings.load.warm_up:
            return measured
        return warmed(measured, self._settings.load.warm_up_iterations, self._on_warmed)

    def app(self, app: App, pool: Executor) -> App:
        """Wrap a REST application to add the metrics page, if enabled.

        Args:
            app: Handles all other requests.
            pool: Thread pool that renders the page.
        """
        path = self._settings.monitoring.metrics_path
        return app if path is None else MetricsApp(app, self.monitor.page, path, pool)

    def batches_of(self, path: Path) -> Observer:
        """Return the observer for the batches of the version in a folder."""
        version = int(path.name)
        models, name = self._models(), self.name_of(path)

        def observe(batch: BatchObservation) -> None:
            nonlocal models, name
            # A new configuration, which replaces the old one as a whole, may rename the model.
            if (current := self._models()) is not models:
                models, name = current, self.name_of(path)
            key = BatchKey(name, version, batch.signature)
            self.monitor.batch(key, batch.rows, batch.padded_rows, batch.queue_s, batch.compute_s)

        return observe

    def name_of(self, path: Path) -> str:
        """Return the model's name for a version's folder; empty if unknown."""
        return self._origin(path)[0]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run request log and tracing during the block, then flush them."""
        self.recorder.start()
        try:
            yield
        finally:
            self.recorder.stop()
            if self._provider is not None:
                self._provider.shutdown()

    def _log_of(self, name: str) -> RequestLogSettings | None:
        # Called for each request, while the configuration is rarely replaced.
        models, logs = self._logs
        current = self._models()
        if current is not models:
            logs = {model.name: model.request_log for model in current}
            self._logs = current, logs
        return logs.get(name)

    def _origin(self, path: Path) -> tuple[str, str]:
        """Return the model's name for a version's folder, and the version's path or URI."""
        for model in self._models():
            if folder_of(model.base_path) == path.parent:
                return model.name, str(path)
            if self._cache.holds(model.base_path, path):
                return model.name, f"{model.base_path}/{path.name}"
        return "", str(path)

    def _on_warmed(self, path: Path, result: WarmUp) -> None:
        self.monitor.warmed(self._key(path, result.code), result.seconds, result.records)

    def _key(self, path: Path, code: Code) -> PathKey:
        name, origin = self._origin(path)
        return PathKey(name, int(path.name), origin, code)
