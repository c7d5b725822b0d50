"""Versions that are computed by different runtimes, each in a process of its own.

A process is forked from a warm parent that has imported one runtime, and there is one parent for
each that is needed. So a server whose versions are all LiteRT's never imports TensorFlow: it
starts in a second or two instead of many, and holds half a gigabyte less.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from timonel.models.python import is_python_model
from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.manager.folders import version_folders
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.selection.auto import runtime_of
from timonel.serving.settings import AUTO, TENSORFLOW, ModelSettings, RuntimeSettings


class ChosenRuntimes(Runtime):
    """Loads each version with the runtime that it is to have. Thread-safe.

    Args:
        apart: Makes what forks the processes of a runtime, by the runtime's name; what it makes is
            owned from then on.
        needed: The runtimes that will surely be needed.
    """

    name = f"{AUTO} in processes"

    def __init__(self, apart: Callable[[str], ProcessRuntime], needed: Iterable[str]) -> None:
        self._apart = apart
        self._needed = tuple(needed)
        self._lock = threading.Lock()
        self._made: dict[str, ProcessRuntime] = {}

    def start(self) -> None:
        """Begin to import what is needed; returns at once. Idempotent."""
        for name in self._needed:
            self._of(name).start()

    def prepare(self) -> None:
        """Wait until what is needed is imported; the rest is imported when there is use for it."""
        for name in self._needed:
            self._of(name).prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version in a process of its own.

        Should that die, it is started again with the same runtime, whatever has become of the
        version's evidence.
        """
        name = runtime_of(path, settings)
        runtime = self._of(name)
        runtime.prepare()
        return runtime.load(path, settings.model_copy(update={"name": name}))

    def close(self) -> None:
        """End the processes that versions are forked from."""
        with self._lock:
            made = list(self._made.values())
        for runtime in made:
            runtime.close()

    def _of(self, name: str) -> ProcessRuntime:
        with self._lock:
            if name not in self._made:
                self._made[name] = self._apart(name)
            return self._made[name]


def needed_at_start(models: Sequence[ModelSettings], settings: RuntimeSettings) -> frozenset[str]:
    """Return the runtimes of the newest versions; TensorFlow where nothing is known of them."""
    return frozenset(
        name for model in models for name in _needed_by(model, settings.of(model.name))
    )


def _needed_by(model: ModelSettings, settings: RuntimeSettings) -> Iterable[str]:
    try:
        versions = version_folders(Path(model.base_path))
    except OSError:  # it is not there yet, or is no folder of this machine
        versions = {}
    if not versions:
        yield TENSORFLOW if settings.name == AUTO else settings.name
    elif not is_python_model(newest := versions[max(versions)]):
        yield runtime_of(newest, settings)
