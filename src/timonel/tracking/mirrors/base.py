"""Base class of mirrors, which copy run records to another tracker."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import ClassVar

from timonel.storage.workspace import Workspace
from timonel.tracking.artifacts import Artifact
from timonel.tracking.events import Event
from timonel.tracking.graph import build_graph
from timonel.tracking.reading import list_runs
from timonel.tracking.records import RunRecord

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
