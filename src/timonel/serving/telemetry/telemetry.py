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
from timonel.serving.batching.queue import BatchObservation, Observer
from timonel.serving.inference.warmup import WarmUp, warmed
from timonel.serving.manager.buckets.source import cache_of
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.manager.sources import folder_of
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings import ModelSettings, ServerSettings
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.counts import BatchKey, PathKey
from timonel.serving.telemetry.monitor import Monitor, count_queued, count_versions
from timonel.serving.telemetry.prometheus import MetricsApp
from timonel.serving.telemetry.request_log import RequestLog
from timonel.serving.telemetry.resources import ResourceMeter
from timonel.serving.telemetry.tracing import make_tracer

Load = Callable[[Path], LoadedModel]


class Telemetry:
    """Instruments of a server.

    Args:
        settings: The server's settings.
        catalogue: The versions in memory.

    Raises:
        MissingExtraError: Tracing is enabled, but OpenTelemetry is not installed.
    """

    def __init__(
        self,
        settings: ServerSettings,
        catalogue: Catalogue,
    ) -> None:
        self._settings = settings
        self._cache = cache_of(settings.load)
        self._provider: Any = None
        tracer = None
        if settings.monitoring.tracing:
            tracer, self._provider = make_tracer()
        self.monitor = Monitor(
            partial(count_versions, catalogue),
            ResourceMeter().read,
            tracer,
            queued=partial(count_queued, catalogue),
        )
        self.recorder = RequestLog(self.monitor.logged)
        self.configure(settings.models)

    def configure(self, models: Sequence[ModelSettings]) -> None:
        """Use the names and request logs of a new configuration."""
        self._models = models
        self.recorder.configure({model.name: model.request_log for model in models})

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
        models, name = self._models, self.name_of(path)

        def observe(batch: BatchObservation) -> None:
            nonlocal models, name
            # A new configuration, which replaces the old one as a whole, may rename the model.
            if self._models is not models:
                models, name = self._models, self.name_of(path)
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

    def _origin(self, path: Path) -> tuple[str, str]:
        """Return the model's name for a version's folder, and the version's path or URI."""
        for model in self._models:
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
