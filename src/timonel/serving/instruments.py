"""What a server process measures, keeps and warms up, put together from its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

from timonel.serving.batching.observation import BatchObservation, Observer
from timonel.serving.config import ModelSettings, RequestLogSettings, ServerSettings
from timonel.serving.monitoring import measures
from timonel.serving.monitoring.endpoint import App, MetricsApp
from timonel.serving.monitoring.loading import Load, key_of, measured
from timonel.serving.monitoring.monitor import Monitor
from timonel.serving.monitoring.series import BatchKey
from timonel.serving.monitoring.tracing import make_tracer
from timonel.serving.requestlog.log import RequestLog
from timonel.serving.servables import Catalogue
from timonel.serving.warmup import WarmUp, warmed


class Instruments:
    """A server's instruments.

    Args:
        settings: What is wanted.
        catalogue: The versions in memory.
        models: Returns the configuration in force.

    Raises:
        SpecError: Traces are wanted, and what makes them is not installed.
    """

    def __init__(
        self,
        settings: ServerSettings,
        catalogue: Catalogue,
        models: Callable[[], Sequence[ModelSettings]],
    ) -> None:
        self._settings = settings
        self._models = models
        self._logs: tuple[Sequence[ModelSettings], dict[str, RequestLogSettings | None]] = (), {}
        self._provider: Any = None
        tracer = None
        if settings.monitoring.tracing:
            tracer, self._provider = make_tracer()
        self.monitor = Monitor(partial(measures.versions, catalogue), measures.memory, tracer)
        self.recorder = RequestLog(self._log_of, self.monitor.logged)

    def loading(self, load: Load) -> Load:
        """Return a ``load`` that is measured, and warms up what it has loaded."""
        load = measured(load, self.monitor, self._name_of)
        if not self._settings.load.warm_up:
            return load
        return warmed(load, self._settings.load.warm_up_iterations, self._on_warmed)

    def app(self, app: App, pool: Executor) -> App:
        """Return a REST application that has the page of metrics too, if it is wanted."""
        path = self._settings.monitoring.metrics_path
        return app if path is None else MetricsApp(app, self.monitor, path, pool)

    def batches_of(self, path: Path) -> Observer:
        """Return who is told of the batches of the version in a folder."""
        version = int(path.name)

        def observe(batch: BatchObservation) -> None:
            # Looked up each time: the configuration may give the folder another name.
            key = BatchKey(self._name_of(path), version, batch.signature)
            self.monitor.batch(key, batch.rows, batch.padded_rows, batch.queue_s, batch.compute_s)

        return observe

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Keep records during the block; write and send what is left at its end."""
        self.recorder.start()
        try:
            yield
        finally:
            self.recorder.stop()
            if self._provider is not None:
                self._provider.shutdown()

    def _log_of(self, name: str) -> RequestLogSettings | None:
        # Asked for each request, of a configuration that is replaced as a whole now and then.
        models, logs = self._logs
        current = self._models()
        if current is not models:
            logs = {model.name: model.request_log for model in current}
            self._logs = current, logs
        return logs.get(name)

    def _name_of(self, path: Path) -> str:
        for model in self._models():
            if Path(model.base_path) == path.parent:
                return model.name
        return ""

    def _on_warmed(self, path: Path, result: WarmUp) -> None:
        self.monitor.warmed(
            key_of(path, self._name_of, result.code), result.seconds, result.records
        )
