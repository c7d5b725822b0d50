"""Runtime per version, each version in its own process.

Processes are forked from a zygote that has imported one runtime, and each needed runtime has
one parent. So a server whose versions all use LiteRT never imports TensorFlow: it starts in a
second or two instead of many, and uses half a gigabyte less memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from timonel.models.python import is_python_model
from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.manager.sources import version_folders
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.selection.auto import runtime_of
from timonel.serving.settings import AUTO, TENSORFLOW, ModelSettings, RuntimeSettings


class ChosenRuntimes(Runtime):
    """Loads each version with its chosen runtime. Thread-safe.

    Args:
        apart: Creates the process runtime for a runtime's name; the result is owned from then on.
        needed: The runtimes that will certainly be needed.
    """

    name = f"{AUTO} in processes"

    def __init__(self, apart: Callable[[str], ProcessRuntime], needed: Iterable[str]) -> None:
        self._apart = apart
        self._needed = tuple(needed)
        self._lock = threading.Lock()
        self._made: dict[str, ProcessRuntime] = {}

    def start(self) -> None:
        """Start to import the needed runtimes; returns at once. Idempotent."""
        for name in self._needed:
            self._of(name).start()

    def prepare(self) -> None:
        """Wait until the needed runtimes are imported; others load on demand."""
        for name in self._needed:
            self._of(name).prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version in its own process.

        If the process dies, it restarts with the same runtime, even if the version's evidence has
        changed.
        """
        name = runtime_of(path, settings)
        runtime = self._of(name)
        runtime.prepare()
        return runtime.load(path, settings.model_copy(update={"name": name}))

    def close(self) -> None:
        """End the zygotes."""
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
    """Return the runtimes of the newest versions; TensorFlow without versions."""
    return frozenset(
        name for model in models for name in _needed_by(model, settings.of(model.name))
    )


def _needed_by(model: ModelSettings, settings: RuntimeSettings) -> Iterable[str]:
    try:
        versions = version_folders(Path(model.base_path))
    except OSError:  # the folder does not exist yet, or is not on this machine
        versions = {}
    if not versions:
        yield TENSORFLOW if settings.name == AUTO else settings.name
    elif not is_python_model(newest := versions[max(versions)]):
        yield runtime_of(newest, settings)
