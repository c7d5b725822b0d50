"""Measure the loading of versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.series import PathKey

Load = Callable[[Path], LoadedModel]
Origin = Callable[[Path], tuple[str, str]]


def measured(load: Load, monitor: Monitor, origin: Origin) -> Load:
    """Wrap a ``load`` to report its duration and result to ``monitor``.

    Args:
        load: Loads the version in a folder.
        monitor: Receives the report.
        origin: Returns the model's name for a version's folder, and the version's origin.
    """

    def measuring(path: Path) -> LoadedModel:
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
            monitor.loaded(key_of(path, origin, code), time.monotonic() - began)

    return measuring


def key_of(path: Path, origin: Origin, code: Code) -> PathKey:
    """Return the key for counting a version's load or warm-up."""
    name, place = origin(path)
    return PathKey(name, int(path.name), place, code)
