"""Create a server's runtime by name, in this process or children."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from timonel.errors import SpecError
from timonel.serving.batching.observation import Observer
from timonel.serving.batching.runtime import BatchingRuntime
from timonel.serving.isolation.runtime import ProcessRuntime
from timonel.serving.runtimes.base import Runtime
from timonel.serving.selection.per_version import ChosenRuntimes, needed_at_start
from timonel.serving.selection.python_models import PYTHON, OwnCodeRuntime, Runtimes, needs_plain
from timonel.serving.settings import AUTO, RuntimeSettings, ServerSettings

GROUP = "timonel.runtimes"


def runtime_for(
    settings: ServerSettings,
    observer: Callable[[Path], Observer] | None = None,
    name_of: Callable[[Path], str] = lambda path: path.parent.name,
) -> Runtime:
    """Return the runtime for a server's settings.

    If versions are isolated, this call starts the import of what they need.

    Args:
        settings: The server's settings.
        observer: Returns the observer for the batches of the version in a folder.
        name_of: Returns the model's name for the folder of a version.

    Raises:
        SpecError: No runtime has this name.
    """
    entry_point = _entry_point(settings.runtime)

    def apart(reference: str) -> ProcessRuntime:
        return ProcessRuntime(
            reference,
            settings.compute,
            observer=observer,
            threads=settings.compute_threads,
            close_timeout_s=settings.drain_s,
        )

    hooked: ProcessRuntime | ChosenRuntimes
    if entry_point.name == AUTO:
        needed = needed_at_start(settings.models, settings.runtime)
        hooked = ChosenRuntimes(lambda name: apart(_reference(_find(name))), needed)
    else:
        hooked = apart(_reference(entry_point))
    plain: Runtime = hooked
    is_needed = needs_plain(settings.models)
    if settings.isolation == "none":
        runtime: Runtime = entry_point.load()()
        plain = BatchingRuntime(
            runtime, settings.runtime.batching, observer, settings.compute_threads
        )
    elif is_needed:
        hooked.start()
    runtimes = Runtimes(plain, hooked, apart(PYTHON))
    return OwnCodeRuntime(runtimes, settings.python, name_of, needs_plain=is_needed)


def _entry_point(settings: RuntimeSettings) -> importlib.metadata.EntryPoint:
    """Return the entry point for all models; ``auto`` for several runtimes."""
    found = [_find(name) for name in settings.runtimes]
    return _find(AUTO) if settings.prefer_tflite or len(found) > 1 else found[0]


def _reference(entry_point: importlib.metadata.EntryPoint) -> str:
    return f"{entry_point.module}:{entry_point.attr}"


def _find(name: str) -> importlib.metadata.EntryPoint:
    for entry_point in importlib.metadata.entry_points(group=GROUP, name=name):
        return entry_point
    known = sorted(each.name for each in importlib.metadata.entry_points(group=GROUP))
    raise SpecError(f"expected a runtime out of {', '.join(known)}, got {name}")
