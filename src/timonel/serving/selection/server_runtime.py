"""Runtime of a server: by name or evidence, with a child process for each Python model."""

from __future__ import annotations

from pathlib import Path

from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.child import ChildRuntime
from timonel.serving.runtimes.python.permission import check_permission
from timonel.serving.selection.auto import AutoRuntime, runtime_entry_point
from timonel.serving.settings import RuntimeSettings, ServerSettings

PYTHON_RUNTIME = "timonel.serving.runtimes.python.runtime:PythonRuntime"


class ServerRuntime(AutoRuntime):
    """Loads Python models in processes of their own, others in this one. Thread-safe.

    A server with only Python models does not import TensorFlow.

    Raises:
        SpecError: No runtime has a configured name.
    """

    def __init__(self, settings: ServerSettings) -> None:
        for name in settings.runtime.runtimes:
            runtime_entry_point(name)  # unknown names are rejected before anything slow
        self._python = ChildRuntime(PYTHON_RUNTIME, timeout_s=settings.python.timeout_s)
        self._settings = settings.python

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version with the runtime for its kind.

        Raises:
            StatusError: It contains Python code that may not run, or cannot be loaded.
        """
        if check_permission(path, settings.model, self._settings):
            return self._python.load(path, settings)
        return super().load(path, settings)
