"""Engine registry: entry-point groups ``timonel.engines`` and ``timonel.service_engines``.

An entry point names a subclass of `Engine` or `ServiceEngine`. One class may implement both
interfaces and be in both groups.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from timonel.engines.base import Engine
from timonel.engines.services import ServiceEngine
from timonel.errors import EngineError, SpecError, did_you_mean
from timonel.storage import Workspace

GROUP = "timonel.engines"
SERVICE_GROUP = "timonel.service_engines"
DEFAULT_ENGINE = "local"
"""Name of the engine of jobs and services that name none."""


def get_engine(name: str | None, workspace: Workspace) -> Engine:
    """Return an engine by name, or the default one, with its jobs in ``workspace``.

    Raises:
        SpecError: No such engine is installed.
    """
    kind = _find(GROUP, name or DEFAULT_ENGINE)
    if not issubclass(kind, Engine):
        raise SpecError(f"the engine {name!r} must be a subclass of Engine, got {kind.__name__}")
    return kind.of(workspace)


def get_service_engine(name: str | None, workspace: Workspace) -> ServiceEngine:
    """Return a service engine by name, or the default one, with its services in ``workspace``.

    Raises:
        SpecError: No such engine is installed.
    """
    return service_engine_type(name or DEFAULT_ENGINE).of(workspace)


def service_engine_type(name: str) -> type[ServiceEngine]:
    """Return the class of a service engine.

    Raises:
        SpecError: No such engine is installed.
    """
    kind = _find(SERVICE_GROUP, name)
    if not issubclass(kind, ServiceEngine):
        raise SpecError(
            f"the engine {name!r} must be a subclass of ServiceEngine, got {kind.__name__}"
        )
    return kind


def engine_names() -> list[str]:
    """Return the names of the installed engines."""
    return _names(GROUP)


def service_engine_names() -> list[str]:
    """Return the names of the installed service engines."""
    return _names(SERVICE_GROUP)


def _find(group: str, name: str) -> type:
    found = entry_points(group=group, name=name)
    if not found:
        kind = "engine" if group == GROUP else "service engine"
        known = _names(group)
        hint = did_you_mean(name, known) or f"use {' or '.join(known)}"
        raise SpecError(f"no such {kind}: {name!r}", hint=hint)
    entry = next(iter(found))
    try:
        loaded = entry.load()
    except Exception as error:
        raise EngineError(
            f"the engine {name!r} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}",
            hint="repair or uninstall the package that provides it",
        ) from error
    if not isinstance(loaded, type):
        raise SpecError(f"the engine {name!r} must be a class, got {loaded!r}")
    return loaded


def _names(group: str) -> list[str]:
    return sorted({entry.name for entry in entry_points(group=group)})
