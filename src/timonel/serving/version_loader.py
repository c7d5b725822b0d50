"""Load a version into a server: with its runtime, scheduled, measured and warmed up."""

from __future__ import annotations

import time
from functools import partial

from timonel.serving.batching.scheduled_model import ScheduledModel
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.warmup import warm_up
from timonel.serving.memory import give_back
from timonel.serving.runtimes.base import Runtime, VersionFolder
from timonel.serving.settings.server import ServerSettings
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.counts import BatchKey, PathKey
from timonel.serving.telemetry.monitor import Monitor


class VersionLoader:
    """Loads versions. Thread-safe."""

    def __init__(self, settings: ServerSettings, runtime: Runtime, monitor: Monitor) -> None:
        self._settings = settings
        self._runtime = runtime
        self._monitor = monitor

    def load(self, version: VersionFolder) -> ScheduledModel:
        """Load a version, and send its warm-up requests to it."""
        model = self._scheduled(version)
        settings = self._settings.load
        if settings.warm_up:
            observe = partial(self._warmed, version)
            try:
                warm_up(model, version.folder, settings.warm_up_iterations, observe)
            except BaseException:
                # Only this function can close a version that is not published yet.
                model.close()
                raise
        give_back()
        return model

    def _scheduled(self, version: VersionFolder) -> ScheduledModel:
        settings = self._settings.runtime.of(version.model)
        began, code = time.monotonic(), Code.UNKNOWN
        try:
            model = scheduled(
                self._runtime.load(version.folder, settings),
                settings.batching,
                lambda batch: self._monitor.batch(
                    BatchKey(version.model, version.number, batch.signature), batch
                ),
                threads=self._settings.compute_threads,
                version=version.folder,
            )
            code = Code.OK
        except StatusError as error:
            code = error.code
            raise
        else:
            return model
        finally:
            self._monitor.loaded(_key(version, code), time.monotonic() - began)

    def _warmed(self, version: VersionFolder, code: Code, seconds: float, records: int) -> None:
        self._monitor.warmed(_key(version, code), seconds, records)


def _key(version: VersionFolder, code: Code) -> PathKey:
    return PathKey(version.model, version.number, version.origin, code)
