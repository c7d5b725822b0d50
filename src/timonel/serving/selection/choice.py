"""Choice of each version's runtime, by settings or the version's evidence."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from timonel.models.inspection import is_python_model
from timonel.models.runtime_choice import chosen_runtime
from timonel.serving.manager.sources import check_files, version_folders
from timonel.serving.settings import AUTO, TENSORFLOW, ModelSettings, RuntimeSettings
from timonel.serving.settings.runtime import LITERT, TFLITE_FILE
from timonel.serving.status import StatusError

_READ_S = 5.0


def runtime_of(path: Path, settings: RuntimeSettings) -> str:
    """Return the name of the runtime for the version in ``path``."""
    if settings.prefer_tflite:
        return LITERT if (path / TFLITE_FILE).is_file() else TENSORFLOW
    if settings.name != AUTO:
        return settings.name
    # TensorFlow's runtime looks for a frozen graph itself.
    return LITERT if chosen_runtime(path) == "litert" else TENSORFLOW


def runtimes_at_start(models: Sequence[ModelSettings], settings: RuntimeSettings) -> frozenset[str]:
    """Return the runtimes of the models' newest versions, without Python models.

    A model without versions counts as one for TensorFlow, and so do models that cannot be read in
    time, because a network file system hangs. A server without models needs the named runtime.
    """
    needed = set() if models else {settings.name} - {AUTO}

    def read() -> None:
        for model in models:
            needed.update(_runtime_at_start(model, settings.of(model.name)))

    reader = threading.Thread(target=read, name="look", daemon=True)
    reader.start()
    reader.join(_READ_S)
    return frozenset(needed | ({TENSORFLOW} if reader.is_alive() else set()))


def _runtime_at_start(model: ModelSettings, settings: RuntimeSettings) -> set[str]:
    try:
        versions = version_folders(Path(model.base_path))
        newest = versions[max(versions)] if versions else None
        if newest is not None:
            check_files(newest)
    except (OSError, StatusError):  # no folder yet, not on this machine, or it will not load
        newest = None
    if newest is None:
        return {TENSORFLOW if settings.name == AUTO else settings.name}
    return set() if is_python_model(newest) else {runtime_of(newest, settings)}
