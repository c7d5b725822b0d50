"""Isolation of versions with Python code in their own processes.

This applies regardless of the isolation of other versions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.models.python import is_python_model
from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.manager.sources import version_folders
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.python.permission import own_code
from timonel.serving.settings import ModelSettings, RuntimeSettings
from timonel.serving.settings.runtime import PythonSettings

PYTHON = "timonel.serving.runtimes.python.runtime:PythonRuntime"
"""Import path of the runtime of Python models."""


@dataclass(frozen=True)
class Runtimes:
    """Runtimes by kind of version.

    Args:
        plain: Versions without Python code.
        hooked: Versions with hooks around the model; may be the same as ``plain``.
        python: Python models.
    """

    plain: Runtime
    hooked: Runtime
    python: ProcessRuntime


class OwnCodeRuntime(Runtime):
    """Choose versions' runtimes by their Python code; enforce permissions. Thread-safe.

    A server with only Python models does not import TensorFlow.

    Args:
        runtimes: The runtimes by kind of version; owned from now on.
        settings: The permissions.
        name_of: Returns the model's name for the folder of a version.
        needs_plain: Whether a version without Python code will certainly be loaded.
    """

    def __init__(
        self,
        runtimes: Runtimes,
        settings: PythonSettings,
        name_of: Callable[[Path], str],
        *,
        needs_plain: bool,
    ) -> None:
        self.name = runtimes.plain.name
        self._runtimes = runtimes
        self._settings = settings
        self._name_of = name_of
        self._needs_plain = needs_plain
        self._lock = threading.Lock()
        self._is_prepared = False

    def prepare(self) -> None:
        """Import what is certainly needed; the rest is imported on first use."""
        if self._needs_plain:
            self._prepare_plain()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version with the runtime for its kind.

        Raises:
            StatusError: It contains Python code that may not run, or cannot be loaded.
        """
        code = own_code(path, self._name_of(path), self._settings)
        if code.hooks is not None:
            settings = settings.model_copy(update={"hooks": str(code.hooks)})
        if not code:
            self._prepare_plain()
            return self._runtimes.plain.load(path, settings)
        runtime = self._runtimes.python if code.is_model else self._runtimes.hooked
        model = runtime.load(path, settings)
        model.has_hooks = code.hooks is not None
        return model

    def close(self) -> None:
        """Release the resources of all runtimes."""
        self._runtimes.plain.close()
        self._runtimes.hooked.close()
        self._runtimes.python.close()

    def _prepare_plain(self) -> None:
        # Hold the lock while importing: a second caller must not load before it is done.
        with self._lock:
            if not self._is_prepared:
                self._runtimes.plain.prepare()
                self._is_prepared = True


def needs_plain(models: Sequence[ModelSettings]) -> bool:
    """Return whether a server starts with other models than Python models."""
    for model in models:
        try:
            folders = version_folders(Path(model.base_path))
        except OSError:
            return True
        if not folders or not all(map(is_python_model, folders.values())):
            return True
    return not models
