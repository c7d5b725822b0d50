"""Runtimes that choose another runtime for each version, by settings or evidence."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from timonel.errors import SpecError
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.child import ChildRuntime
from timonel.serving.selection.choice import check_permission, runtime_of
from timonel.serving.settings.runtime import AUTO, RuntimeSettings
from timonel.serving.settings.server import ServerSettings
from timonel.serving.status import invalid_argument

_GROUP = "timonel.runtimes"
PYTHON_RUNTIME = "timonel.serving.runtimes.python.runtime:PythonRuntime"


def runtime_entry_point(name: str) -> importlib.metadata.EntryPoint:
    """Return the entry point of a runtime."""
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
        """Load the version in ``path``."""
        name = runtime_of(path, settings)
        return _runtime(name).load(path, settings.model_copy(update={"name": name}))


class ServerRuntime(AutoRuntime):
    """Loads Python models in processes of their own, others in this one. Thread-safe.

    A server with only Python models does not import TensorFlow.
    """

    def __init__(self, settings: ServerSettings) -> None:
        for name in settings.runtime.runtimes:
            runtime_entry_point(name)  # unknown names are rejected before anything slow
        self._python = ChildRuntime(PYTHON_RUNTIME, timeout_s=settings.python.timeout_s)
        self._settings = settings.python

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version with the runtime for its kind."""
        if check_permission(path, settings.model, self._settings):
            return self._python.load(path, settings)
        return super().load(path, settings)


def _runtime(name: str) -> Runtime:
    try:
        runtime: Runtime = runtime_entry_point(name).load()()
    except SpecError as error:
        raise invalid_argument(str(error)) from error
    return runtime
