"""Lineage as a graph of runs and artifacts, built from run records.

An artifact is one node regardless of location: its digest is its identity. An artifact recorded
without a digest is merged with the one last seen at its URI at that time; otherwise its URI is its
identity. Edges follow the data: artifact -> run that read it, run -> artifact that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from timonel.tracking.records import Artifact, RunRecord

ArtifactState = Literal["present", "changed", "missing"]
Direction = Literal["upstream", "downstream", "both"]


@dataclass(frozen=True)
class RunNode:
    """A run in the graph."""

    record: RunRecord

    @property
    def key(self) -> str:
        """Key of the node."""
        return f"run:{self.record.id}"


@dataclass(frozen=True)
class ArtifactNode:
    """An artifact in the graph, with the descriptions from all runs.

    Attributes:
        key: The node's key: its digest, or ``uri:`` and its URI.
        seen: The description of each run, oldest first; the last one is displayed.
        state: The current state of its locations, if checked: ``changed`` means that the content
            differs now.
    """

    key: str
    seen: tuple[Artifact, ...]
    state: ArtifactState | None = None

    @property
    def artifact(self) -> Artifact:
        """Latest description."""
        return self.seen[-1]

    @property
    def uris(self) -> tuple[str, ...]:
        """All locations where it was seen, latest first."""
        return tuple(dict.fromkeys(artifact.uri for artifact in reversed(self.seen)))


Node = RunNode | ArtifactNode


@dataclass(frozen=True)
class LineageGraph:
    """Nodes by key, and edges in the direction of the data. Immutable.

    Attributes:
        nodes: All nodes, runs oldest first, each after its inputs.
        edges: Pairs of keys (from, to).
        focus: The key of the requested node, if any.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: tuple[tuple[str, str], ...] = ()
    focus: str | None = None

    @property
    def artifacts(self) -> tuple[ArtifactNode, ...]:
        """Artifact nodes."""
        return tuple(node for node in self.nodes.values() if isinstance(node, ArtifactNode))

    @property
    def runs(self) -> tuple[RunNode, ...]:
        """Run nodes."""
        return tuple(node for node in self.nodes.values() if isinstance(node, RunNode))

    def sources(self, key: str) -> tuple[Node, ...]:
        """Return a node's predecessors: a run's inputs, an artifact's producers."""
        return tuple(self.nodes[start] for start, end in self.edges if end == key)

    def targets(self, key: str) -> tuple[Node, ...]:
        """Return a node's successors: a run's outputs, an artifact's readers."""
        return tuple(self.nodes[end] for start, end in self.edges if start == key)

    def around(self, focus: str, direction: Direction = "both") -> LineageGraph:
        """Return the subgraph upstream or downstream of ``focus``, or both."""
        kept = {focus}
        if direction != "downstream":
            kept |= self._closure(focus, self.sources)
        if direction != "upstream":
            kept |= self._closure(focus, self.targets)
        return LineageGraph(
            nodes={key: node for key, node in self.nodes.items() if key in kept},
            edges=tuple(edge for edge in self.edges if kept.issuperset(edge)),
            focus=focus,
        )

    def observed(self, observe: Callable[[ArtifactNode], ArtifactState | None]) -> LineageGraph:
        """Return the graph with each artifact's state, found by ``observe``."""
        nodes = {
            key: replace(node, state=observe(node)) if isinstance(node, ArtifactNode) else node
            for key, node in self.nodes.items()
        }
        return replace(self, nodes=nodes)

    def with_artifact(self, artifact: Artifact) -> LineageGraph:
        """Return the graph focused on an artifact, adding it if missing."""
        key = artifact.digest or _uri_key(artifact.uri)
        nodes = self.nodes if key in self.nodes else {**self.nodes, key: _node(key, artifact)}
        return replace(self, nodes=nodes, focus=key)

    def _closure(self, start: str, step: Callable[[str], Iterable[Node]]) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for node in step(waiting.pop()):
                if node.key not in found:
                    found.add(node.key)
                    waiting.append(node.key)
        return found


def build_graph(records: Iterable[RunRecord]) -> LineageGraph:
    """Return the graph of all runs and artifacts in ``records``."""
    builder = _Builder()
    for record in sorted(records, key=lambda record: (record.started_at, record.id)):
        builder.add(record)
    return LineageGraph(dict(builder.nodes), tuple(dict.fromkeys(builder.edges)))


class _Builder:
    """Builds a graph from runs in chronological order.

    So a URI means its latest content.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: list[tuple[str, str]] = []
        self._key_at: dict[str, str] = {}

    def add(self, record: RunRecord) -> None:
        node = RunNode(record)
        keys = [self._place(artifact) for artifact in record.inputs]
        self.nodes[node.key] = node
        self.edges += [(key, node.key) for key in keys]
        self.edges += [(node.key, self._place(artifact)) for artifact in record.outputs]

    def _place(self, artifact: Artifact) -> str:
        key = artifact.digest or self._key_at.get(artifact.uri) or _uri_key(artifact.uri)
        self._key_at[artifact.uri] = key
        known = self.nodes.get(key)
        if isinstance(known, ArtifactNode):
            self.nodes[key] = replace(known, seen=(*known.seen, _filled(artifact, known)))
        else:
            self.nodes[key] = _node(key, artifact)
        return key


def _filled(artifact: Artifact, known: ArtifactNode) -> Artifact:
    """Return a description, completed from an earlier one of the same artifact."""
    before = known.artifact
    metadata: dict[str, Any] = {**before.metadata, **artifact.metadata}
    update = {
        "digest": artifact.digest or before.digest,
        "name": artifact.name or before.name,
        "metadata": metadata,
    }
    return artifact.model_copy(update=update)


def _node(key: str, artifact: Artifact) -> ArtifactNode:
    return ArtifactNode(key, (artifact,))


def _uri_key(uri: str) -> str:
    return f"uri:{uri}"
