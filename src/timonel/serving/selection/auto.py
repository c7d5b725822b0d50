"""Runtime that chooses another runtime for each version, by settings or evidence."""

from __future__ import annotations

import importlib.metadata
import threading
from pathlib import Path

from timonel.models.evidence import chosen
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.litert import TFLITE_FILE, LiteRtRuntime
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings import AUTO, RuntimeSettings
from timonel.serving.status import invalid_argument

GROUP = "timonel.runtimes"


class AutoRuntime(Runtime):
    """Loads each version with its chosen runtime."""

    name = AUTO

    def __init__(self) -> None:
        self._known: dict[str, Runtime] = {
            each.name: each for each in (TensorFlowRuntime(), LiteRtRuntime())
        }
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Import the runtimes that most versions need."""
        for runtime in self._known.values():
            runtime.prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in ``path``.

        Raises:
            StatusError: Its runtime is unknown, or cannot load it.
        """
        name = runtime_of(path, settings)
        return self._runtime(name).load(path, settings.model_copy(update={"name": name}))

    def close(self) -> None:
        """Release the resources of the runtimes."""
        for runtime in self._known.values():
            runtime.close()

    def _runtime(self, name: str) -> Runtime:
        with self._lock:
            if name not in self._known:
                found = list(importlib.metadata.entry_points(group=GROUP, name=name))
                if not found:
                    raise invalid_argument(f"there is no runtime {name}")
                runtime: Runtime = found[0].load()()
                runtime.prepare()
                self._known[name] = runtime
            return self._known[name]


def runtime_of(path: Path, settings: RuntimeSettings) -> str:
    """Return the name of the runtime for the version in ``path``."""
    if settings.prefer_tflite:
        return LiteRtRuntime.name if (path / TFLITE_FILE).is_file() else TensorFlowRuntime.name
    if settings.name != AUTO:
        return settings.name
    # TensorFlow's runtime looks for a frozen graph itself.
    return LiteRtRuntime.name if chosen(path) == "litert" else TensorFlowRuntime.name
