"""Which runtime a server uses: found by its name, in this process or in processes of its own."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from timonel.errors import SpecError
from timonel.serving.batching.observation import Observer
from timonel.serving.batching.runtime import BatchingRuntime
from timonel.serving.compute.runtime import ProcessRuntime
from timonel.serving.config import ServerSettings
from timonel.serving.runtimes.base import Runtime

GROUP = "timonel.runtimes"


def runtime_for(
    settings: ServerSettings, observer: Callable[[Path], Observer] | None = None
) -> Runtime:
    """Return the runtime that a server's settings ask for.

    Where versions are kept apart, what they need begins to be imported with this call.

    Args:
        settings: What is wanted.
        observer: Returns who is told of the batches of the version in a folder.

    Raises:
        SpecError: There is none of that name.
    """
    entry_point = _find(settings.runtime.name)
    if settings.isolation == "none":
        runtime: Runtime = entry_point.load()()
        return BatchingRuntime(runtime, settings.runtime.batching, observer)
    apart = ProcessRuntime(
        f"{entry_point.module}:{entry_point.attr}",
        settings.compute,
        observer=observer,
        threads=settings.compute_threads,
        close_timeout_s=settings.drain_s,
    )
    apart.start()
    return apart


def _find(name: str) -> importlib.metadata.EntryPoint:
    for entry_point in importlib.metadata.entry_points(group=GROUP, name=name):
        return entry_point
    known = sorted(each.name for each in importlib.metadata.entry_points(group=GROUP))
    raise SpecError(f"expected a runtime out of {', '.join(known)}, got {name}")
