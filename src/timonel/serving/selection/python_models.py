"""Versions that bring Python of their own compute in processes of their own, whatever others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.models.python import is_python_model
from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.manager.folders import version_folders
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.python.permission import own_code
from timonel.serving.settings import ModelSettings, RuntimeSettings
from timonel.serving.settings.python import PythonSettings

PYTHON = "timonel.serving.runtimes.python.runtime:PythonRuntime"
"""Where the runtime of Python models is found."""


@dataclass(frozen=True)
class Runtimes:
    """Who loads what.

    Args:
        plain: Versions without Python of their own.
        hooked: Such versions with hooks around them; may be the same as ``plain``.
        python: Python models.
    """

    plain: Runtime
    hooked: Runtime
    python: ProcessRuntime


class OwnCodeRuntime(Runtime):
    """Decides who loads a version by the Python that it brings, and what is refused. Thread-safe.

    A server of Python models alone imports no TensorFlow.

    Args:
        runtimes: Who loads what; owned from now on.
        settings: What may run.
        name_of: Returns the name of the model whose version a folder is.
        needs_plain: Whether there will surely be something without Python of its own to load.
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
        """Import what is needed for sure; the rest is imported when there is something for it."""
        if self._needs_plain:
            self._prepare_plain()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version where its code belongs.

        Raises:
            StatusError: It brings Python that may not run, or cannot be loaded.
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
        """Give back what all of them took."""
        self._runtimes.plain.close()
        self._runtimes.hooked.close()
        self._runtimes.python.close()

    def _prepare_plain(self) -> None:
        # Held meanwhile: whoever comes second must not load before it is done.
        with self._lock:
            if not self._is_prepared:
                self._runtimes.plain.prepare()
                self._is_prepared = True


def needs_plain(models: Sequence[ModelSettings]) -> bool:
    """Tell whether a server will need more than Python: it will unless every version is that."""
    for model in models:
        try:
            folders = version_folders(Path(model.base_path))
        except OSError:
            return True
        if not folders or not all(map(is_python_model, folders.values())):
            return True
    return not models
