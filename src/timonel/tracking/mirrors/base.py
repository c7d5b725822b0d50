"""What a mirror is: a copy of run records in another tracker, made from the records alone."""

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
    """Copies one run after another into another tracker.

    Used by one thread of one process at a time, under a lock for each run. It may raise anything:
    the feed logs it and tries again later, starting with `begin`. A batch whose position was not
    kept any more is given once more, so the same events given twice must have the effect of once.
    """

    name: ClassVar[str]
    """The name of its entry point."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    @classmethod
    @abc.abstractmethod
    def is_available(cls) -> bool:
        """Tell, without importing it, whether the package that it needs is installed."""

    @property
    def wants_all(self) -> bool:
        """Whether every run is to be copied; if not, those that `wants` picks."""
        return True

    def wants(self, run: RunRecord) -> bool:  # noqa: ARG002 - for those that look at it
        """Tell whether ``run`` is to be copied."""
        return self.wants_all

    @abc.abstractmethod
    def begin(self, run: RunRecord) -> bool:
        """Make ``run`` the one that events are for, and copy its header.

        Returns:
            Whether the tracker knew the run already. If not, all its events are given again.
        """

    @abc.abstractmethod
    def events(self, batch: Sequence[Event]) -> None:
        """Copy events of the run, in their order. Unknown types are passed over."""

    @abc.abstractmethod
    def end(self) -> None:
        """Let go of the run; whatever was given is in the tracker when this returns."""


def subject(workspace: Workspace, run: RunRecord) -> str:
    """Return what a run is about, which trackers group runs by.

    The name of the dataset it reads, or that what it reads was made from; else of its raw files;
    else of its script; else ``timonel``.
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
    """Return the artifacts that led to what a run reads, nearest in time first."""
    if all(artifact.type == "source" for artifact in run.inputs):
        return ()
    graph = build_graph(list_runs(workspace)).around(f"run:{run.id}", "upstream")
    return tuple(node.artifact for node in reversed(graph.artifacts))
