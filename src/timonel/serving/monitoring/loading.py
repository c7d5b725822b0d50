"""Loading a version, with everything that belongs to it: measured, and warmed up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from timonel.serving.monitoring.monitor import Monitor
from timonel.serving.monitoring.series import PathKey
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.status import Code, StatusError

Load = Callable[[Path], LoadedModel]
NameOf = Callable[[Path], str]


def measured(load: Load, monitor: Monitor, name_of: NameOf) -> Load:
    """Return a ``load`` that tells ``monitor`` how long it took, and how it ended.

    Args:
        load: Loads the version in a folder.
        monitor: Is told.
        name_of: Returns the name of the model whose version a folder is.
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
            monitor.loaded(key_of(path, name_of, code), time.monotonic() - began)

    return measuring


def key_of(path: Path, name_of: NameOf, code: Code) -> PathKey:
    """Return what to count a version's load or warm-up under."""
    return PathKey(name_of(path), int(path.name), str(path), code)
