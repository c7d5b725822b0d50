"""Choice of each version's runtime, by settings or evidence; permission to run Python code."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from timonel.models.inspection import (
    PYTHON_MODEL_FILE,
    TFLITE_FILE,
    is_flatbuffer,
    is_python_model,
)
from timonel.models.runtime_choice import chosen_runtime
from timonel.serving.manager.sources import check_files, version_folders
from timonel.serving.settings.models import TENSORFLOW, ModelSettings
from timonel.serving.settings.runtime import (
    AUTO,
    LITERT,
    PythonSettings,
    RuntimeSettings,
)
from timonel.serving.status import Code, StatusError

_READ_S = 5.0


def runtime_of(path: Path, settings: RuntimeSettings) -> str:
    """Return the name of the runtime for the version in ``path``."""
    if settings.prefer_tflite:
        return LITERT if (path / TFLITE_FILE).is_file() else TENSORFLOW
    if settings.name != AUTO:
        return settings.name
    # TensorFlow's runtime looks for a frozen graph itself.
    return LITERT if chosen_runtime(path) == "litert" or is_flatbuffer(path) else TENSORFLOW


def needs_tensorflow(models: Sequence[ModelSettings], settings: RuntimeSettings) -> bool:
    """Return whether TensorFlow computes the newest version of a model.

    Assumed of models without versions, and of those that cannot be read in time, because a network
    file system hangs. A server without models needs the named runtime.
    """
    found = [] if models else [settings.name == TENSORFLOW]

    def read() -> None:
        found.append(any(_needs_tensorflow(model, settings.of(model.name)) for model in models))

    reader = threading.Thread(target=read, name="look", daemon=True)
    reader.start()
    reader.join(_READ_S)
    return reader.is_alive() or any(found)


def _needs_tensorflow(model: ModelSettings, settings: RuntimeSettings) -> bool:
    try:
        versions = version_folders(Path(model.base_path))
        newest = versions[max(versions)] if versions else None
        if newest is not None:
            check_files(newest)
    except (OSError, StatusError):  # no folder yet, not on this machine, or it will not load
        newest = None
    if newest is None:
        return settings.name in {TENSORFLOW, AUTO}
    return not is_python_model(newest) and runtime_of(newest, settings) == TENSORFLOW


def check_permission(version: Path, name: str, settings: PythonSettings) -> bool:
    """Return whether a version is a Python model, which then may run."""
    if not is_python_model(version):
        return False
    if not settings.allows(name):
        raise StatusError(
            Code.PERMISSION_DENIED,
            f"{version} contains {PYTHON_MODEL_FILE}, Python code that would run as the server's "
            f"user: if you trust its author, start the server with --allow-python {name} "
            f"(timonel-model-server: --allow_python={name})",
        )
    return True
