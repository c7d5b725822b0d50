"""Create a server's runtime: by name, in this process or children, with or without Python code."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from timonel.serving.batching.queue import Observer
from timonel.serving.batching.runtime import BatchingRuntime
from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.python.permission import python_code_of
from timonel.serving.selection.auto import AutoRuntime, runtime_entry_point, runtimes_at_start
from timonel.serving.settings import AUTO, RuntimeSettings, ServerSettings
from timonel.serving.settings.runtime import PythonSettings

PYTHON_RUNTIME = "timonel.serving.runtimes.python.runtime:PythonRuntime"


def runtime_for(
    settings: ServerSettings,
    observer: Callable[[Path], Observer] | None = None,
    name_of: Callable[[Path], str] = lambda path: path.parent.name,
    log: Path | None = None,
) -> Runtime:
    """Return the runtime for a server's settings.

    If versions are isolated, this call starts the import of what they need.

    Args:
        settings: The server's settings.
        observer: Returns the observer for the batches of the version in a folder.
        name_of: Returns the model's name for the folder of a version.
        log: File for the output of processes of versions; by default that of this process.

    Raises:
        SpecError: No runtime has this name.
    """

    def in_processes(reference: str) -> ProcessRuntime:
        return ProcessRuntime(
            reference,
            settings.compute,
            observer=observer,
            threads=settings.compute_threads,
            close_timeout_s=settings.drain_s,
            log=log,
        )

    entry_point = _entry_point(settings.runtime)
    needed = runtimes_at_start(settings.models, settings.runtime)
    is_needed = bool(needed) or not settings.models
    isolated: Runtime
    if entry_point.name == AUTO:
        isolated = AutoRuntime(
            lambda name: in_processes(_reference(runtime_entry_point(name))), needed
        )
    else:
        isolated = in_processes(_reference(entry_point))
    plain: Runtime = isolated
    if settings.isolation == "none":
        plain = BatchingRuntime(
            entry_point.load()(), settings.runtime.batching, observer, settings.compute_threads
        )
    elif is_needed:
        isolated.start()
    return ServerRuntime(
        plain,
        isolated,
        in_processes(PYTHON_RUNTIME),
        settings.python,
        name_of,
        prepares_plain=is_needed,
    )


class ServerRuntime(Runtime):
    """Choose versions' runtimes by their Python code; enforce permissions. Thread-safe.

    Versions with Python code run in processes of their own, regardless of the isolation of others.
    A server with only Python models does not import TensorFlow.

    Args:
        plain: Loads versions without Python code.
        hooked: Loads versions with hooks around the model; may be the same as ``plain``.
        python: Loads Python models. All three are owned from now on.
        settings: The permissions.
        name_of: Returns the model's name for the folder of a version.
        prepares_plain: Whether a version without Python code will certainly be loaded.
    """

    def __init__(
        self,
        plain: Runtime,
        hooked: Runtime,
        python: Runtime,
        settings: PythonSettings,
        name_of: Callable[[Path], str],
        *,
        prepares_plain: bool,
    ) -> None:
        self.name = plain.name
        self._plain, self._hooked, self._python = plain, hooked, python
        self._settings = settings
        self._name_of = name_of
        self._prepares_plain = prepares_plain

    def prepare(self) -> None:
        """Import what is certainly needed; the rest is imported on first use."""
        if self._prepares_plain:
            self._plain.prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load a version with the runtime for its kind.

        Raises:
            StatusError: It contains Python code that may not run, or cannot be loaded.
        """
        code = python_code_of(path, self._name_of(path), self._settings)
        if not code:
            return self._plain.load(path, settings)
        if code.hooks is not None:
            settings = settings.model_copy(update={"hooks": str(code.hooks)})
        runtime = self._python if code.is_model else self._hooked
        model = runtime.load(path, settings)
        model.has_hooks = code.hooks is not None
        return model

    def close(self) -> None:
        """Release the resources of all runtimes."""
        for runtime in (self._plain, self._hooked, self._python):
            runtime.close()


def _entry_point(settings: RuntimeSettings) -> importlib.metadata.EntryPoint:
    """Return the entry point for all models; ``auto`` for several runtimes."""
    found = [runtime_entry_point(name) for name in settings.runtimes]
    return runtime_entry_point(AUTO) if settings.prefer_tflite or len(found) > 1 else found[0]


def _reference(entry_point: importlib.metadata.EntryPoint) -> str:
    return f"{entry_point.module}:{entry_point.attr}"
