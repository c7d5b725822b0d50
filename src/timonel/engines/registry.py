"""Engine registry: entry-point group ``timonel.engines``.

An entry point names a callable that takes the folder in which the engine keeps its jobs.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from timonel.engines.base import Engine
from timonel.errors import SpecError
from timonel.storage import Workspace

GROUP = "timonel.engines"
DEFAULT_ENGINE = "local"
"""Name of the engine of jobs that name none."""


def get_engine(name: str | None, workspace: Workspace) -> Engine:
    """Return an engine by name, or the default one, with its jobs in ``workspace``.

    Raises:
        SpecError: No such engine is installed.
    """
    name = name or DEFAULT_ENGINE
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise SpecError(
            f"no such engine: {name!r}",
            hint=f"installed engines: {', '.join(engine_names()) or 'none'}",
        )
    engine = next(iter(found)).load()(workspace.jobs)
    if not isinstance(engine, Engine):
        raise SpecError(f"the engine {name!r} must be an Engine, got {type(engine).__name__}")
    return engine


def engine_names() -> list[str]:
    """Return the names of the installed engines."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})
