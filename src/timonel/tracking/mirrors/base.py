"""Base class and registry of mirrors, which copy run records to other trackers."""

from __future__ import annotations

import abc
import functools
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import ClassVar

from timonel.errors import NotFoundError, TimonelError
from timonel.storage.workspace import Workspace
from timonel.tracking.events import Event
from timonel.tracking.graph import build_graph
from timonel.tracking.reading import list_runs
from timonel.tracking.records import Artifact, RunRecord

DEFAULT_SUBJECT = "timonel"


class Mirror(abc.ABC):
    """Copies runs, one after another, to another tracker.

    Used by one thread of one process at a time, under a lock per run. It may raise any exception:
    the feed logs it and retries later, starting with `begin`. A batch is repeated if its position
    was not saved, so repeated events must have no further effect.
    """

    name: ClassVar[str]
    """Name of the entry point."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    @classmethod
    @abc.abstractmethod
    def is_available(cls) -> bool:
        """Return whether the required package is installed, without importing it."""

    @property
    def wants_all(self) -> bool:
        """Whether to copy every run; if not, only those selected by `wants`."""
        return True

    def wants(self, run: RunRecord) -> bool:  # noqa: ARG002 - for overrides
        """Return whether to copy ``run``."""
        return self.wants_all

    @abc.abstractmethod
    def begin(self, run: RunRecord) -> bool:
        """Select ``run`` for the following events, and copy its header.

        Returns:
            Whether the tracker already had the run. If not, all its events are sent again.
        """

    @abc.abstractmethod
    def events(self, batch: Sequence[Event]) -> None:
        """Copy events of the run, in order. Unknown types are ignored."""

    @abc.abstractmethod
    def end(self) -> None:
        """Close the run, with all its events in the tracker."""


def subject(workspace: Workspace, run: RunRecord) -> str:
    """Return the subject of a run, by which trackers group runs.

    This is the name of its dataset, directly or upstream; else of its raw files; else of its
    script; else ``timonel``.
    """
    for inputs in (run.inputs, _upstream(workspace, run)):
        for type_ in ("dataset", "files"):
            for artifact in inputs:
                if artifact.type == type_:
                    return _without_ending(artifact.label)
    scripts = [_without_ending(item.label) for item in run.inputs if item.type == "source"]
    return scripts[0] if scripts else DEFAULT_SUBJECT


def _without_ending(name: str) -> str:
    path = PurePosixPath(name)
    return path.stem if path.suffix in {".csv", ".ipynb", ".py", ".tsv"} else name


def _upstream(workspace: Workspace, run: RunRecord) -> tuple[Artifact, ...]:
    """Return the artifacts upstream of a run's inputs, latest first."""
    if all(artifact.type == "source" for artifact in run.inputs):
        return ()
    graph = build_graph(list_runs(workspace)).around(f"run:{run.id}", "upstream")
    return tuple(node.artifact for node in reversed(graph.artifacts))


GROUP = "timonel.mirrors"
ENVIRONMENT_VARIABLE = "TIMONEL_MIRRORS"


@functools.cache
def known_mirrors() -> Mapping[str, type[Mirror] | Exception]:
    """Return each mirror's class, or its import error, by name.

    A broken mirror must not break timonel; its error is raised if a user names the mirror, and
    shown by ``timonel doctor``.
    """
    return {point.name: _load(point) for point in importlib.metadata.entry_points(group=GROUP)}


def mirror_class(name: str) -> type[Mirror]:
    """Return the class of a mirror.

    Raises:
        NotFoundError: No mirror has this name.
        TimonelError: The mirror could not be imported.
    """
    known = known_mirrors()
    if name not in known:
        raise NotFoundError(f"no mirror {name!r}", hint=f"use one of {', '.join(known)}")
    found = known[name]
    if isinstance(found, Exception):
        raise TimonelError(f"cannot import the mirror {name}: {found!r}") from found
    return found


def installed_mirrors(workspace: Workspace) -> list[Mirror]:
    """Return an instance of each mirror whose package is installed.

    The environment variable ``TIMONEL_MIRRORS`` restricts them to a comma-separated list of names;
    ``none`` disables all of them.
    """
    selected = named_mirrors()
    return [
        found(workspace)
        for name, found in known_mirrors().items()
        if (selected is None or name in selected)
        and not isinstance(found, Exception)
        and found.is_available()
    ]


def named_mirrors() -> frozenset[str] | None:
    """Return the names in ``TIMONEL_MIRRORS``; None if it is not set."""
    names = os.environ.get(ENVIRONMENT_VARIABLE)
    return None if names is None else frozenset(name.strip() for name in names.split(","))


def _load(point: importlib.metadata.EntryPoint) -> type[Mirror] | Exception:
    try:
        loaded: type[Mirror] = point.load()
    except Exception as error:  # noqa: BLE001 - a third-party package; stored and raised on use
        return error
    return loaded
