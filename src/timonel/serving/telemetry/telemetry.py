"""Telemetry of a server process: metrics, traces and request logs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

from timonel.serving.asgi import Route
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.settings import ModelSettings, ServerSettings
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.prometheus import metrics_route
from timonel.serving.telemetry.request_log import RequestLog
from timonel.serving.telemetry.tracing import make_tracer


class Telemetry:
    """Instruments of a server."""

    def __init__(self, settings: ServerSettings, catalogue: Catalogue) -> None:
        self._settings = settings
        self._provider: Any = None
        tracer = None
        if settings.monitoring.tracing:
            tracer, self._provider = make_tracer()
        self.monitor = Monitor(catalogue, tracer)
        self.recorder = RequestLog(self.monitor.logged)
        self.configure(settings.models)

    def configure(self, models: Sequence[ModelSettings]) -> None:
        """Use the request logs of a new configuration."""
        self.recorder.configure({model.name: model.request_log for model in models})

    def routes(self, pool: Executor) -> list[Route]:
        """Return the route of the metrics page, if enabled; the pool renders it."""
        path = self._settings.monitoring.metrics_path
        return [] if path is None else [metrics_route(self.monitor.page, path, pool)]

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
