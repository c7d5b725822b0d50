"""Runtime that chooses another runtime for each version, by settings or evidence."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from timonel.errors import SpecError
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.selection.choice import runtime_of
from timonel.serving.settings import AUTO, RuntimeSettings
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


class AutoRuntime(Runtime):
    """Loads each version with its chosen runtime. Thread-safe.

    A process imports a runtime only if a version needs it. A server whose versions all use LiteRT
    never imports TensorFlow: it starts in a second or two instead of many, and uses half a gigabyte
    less memory.
    """

    name = AUTO

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in ``path``.

        Raises:
            StatusError: Its runtime is unknown, or cannot load it.
        """
        name = runtime_of(path, settings)
        return _runtime(name).load(path, settings.model_copy(update={"name": name}))


def _runtime(name: str) -> Runtime:
    try:
        runtime: Runtime = runtime_entry_point(name).load()()
    except SpecError as error:
        raise invalid_argument(str(error)) from error
    return runtime
