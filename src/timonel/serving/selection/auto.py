"""Runtime that chooses another runtime for each version, by settings or evidence."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from timonel.errors import SpecError
from timonel.models.inspection import is_python_model
from timonel.models.runtime_choice import chosen_runtime
from timonel.serving.manager.sources import version_folders
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.litert import TFLITE_FILE, LiteRtRuntime
from timonel.serving.settings import AUTO, TENSORFLOW, ModelSettings, RuntimeSettings
from timonel.serving.status import invalid_argument

_GROUP = "timonel.runtimes"


def runtime_entry_point(name: str) -> importlib.metadata.EntryPoint:
    """Return the entry point of a runtime.

    Raises:
        SpecError: No runtime has this name.
    """
    for entry_point in importlib.metadata.entry_points(group=_GROUP, name=name):
        return entry_point
    known = sorted(each.name for each in importlib.metadata.entry_points(group=_GROUP))
    raise SpecError(f"there is no runtime {name}", hint=f"the runtimes are: {', '.join(known)}")


def _in_this_process(name: str) -> Runtime:
    try:
        runtime: Runtime = runtime_entry_point(name).load()()
    except SpecError as error:
        raise invalid_argument(str(error)) from error
    return runtime


class AutoRuntime(Runtime):
    """Loads each version with its chosen runtime. Thread-safe.

    A process imports a runtime only if a version needs it. A server whose versions all use LiteRT
    in processes of their own never imports TensorFlow: it starts in a second or two instead of
    many, and uses half a gigabyte less memory.

    Args:
        make: Creates a runtime by name; the result is owned from then on.
        needed: The runtimes to import before the first load.
    """

    name = AUTO

    def __init__(
        self,
        make: Callable[[str], Runtime] = _in_this_process,
        needed: Iterable[str] = (TENSORFLOW, LiteRtRuntime.name),
    ) -> None:
        self._make = make
        self._needed = tuple(needed)
        self._lock = threading.Lock()
        self._runtimes: dict[str, Runtime] = {}

    def start(self) -> None:
        """Start to import the needed runtimes; returns at once. Idempotent."""
        for name in self._needed:
            self._of(name).start()

    def prepare(self) -> None:
        """Import the needed runtimes; others are imported on demand."""
        for name in self._needed:
            self._of(name).prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in ``path``.

        If its process dies, it restarts with the same runtime, even if the version's evidence has
        changed.

        Raises:
            StatusError: Its runtime is unknown, or cannot load it.
        """
        name = runtime_of(path, settings)
        runtime = self._of(name)
        runtime.prepare()
        return runtime.load(path, settings.model_copy(update={"name": name}))

    def close(self) -> None:
        """Release the resources of the runtimes."""
        with self._lock:
            runtimes = list(self._runtimes.values())
        for runtime in runtimes:
            runtime.close()

    def _of(self, name: str) -> Runtime:
        with self._lock:
            if name not in self._runtimes:
                self._runtimes[name] = self._make(name)
            return self._runtimes[name]


def runtime_of(path: Path, settings: RuntimeSettings) -> str:
    """Return the name of the runtime for the version in ``path``."""
    if settings.prefer_tflite:
        return LiteRtRuntime.name if (path / TFLITE_FILE).is_file() else TENSORFLOW
    if settings.name != AUTO:
        return settings.name
    # TensorFlow's runtime looks for a frozen graph itself.
    return LiteRtRuntime.name if chosen_runtime(path) == "litert" else TENSORFLOW


def runtimes_at_start(models: Sequence[ModelSettings], settings: RuntimeSettings) -> frozenset[str]:
    """Return the runtimes of the models' newest versions, without Python models.

    A model without versions counts as one for TensorFlow.
    """
    needed = set()
    for model in models:
        own = settings.of(model.name)
        try:
            versions = version_folders(Path(model.base_path))
        except OSError:  # the folder does not exist yet, or is not on this machine
            versions = {}
        if not versions:
            needed.add(TENSORFLOW if own.name == AUTO else own.name)
        elif not is_python_model(newest := versions[max(versions)]):
            needed.add(runtime_of(newest, own))
    return frozenset(needed)
