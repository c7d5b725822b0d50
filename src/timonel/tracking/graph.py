"""Lineage as a graph of runs and artifacts: pure functions of run records.

An artifact is one node wherever it lies: its digest is its identity. One that was recorded
without a digest is joined to what was at its URI at that time; failing that, its URI is its
identity. Edges follow the data: artifact -> run that read it, run -> artifact that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from timonel.tracking.artifacts import Artifact
from timonel.tracking.records import RunRecord

ArtifactState = Literal["present", "changed", "missing"]
Direction = Literal["upstream", "downstream", "both"]


@dataclass(frozen=True)
class RunNode:
    """One run in the graph."""

    record: RunRecord

    @property
    def key(self) -> str:
        """The node's identity."""
        return f"run:{self.record.id}"


@dataclass(frozen=True)
class ArtifactNode:
    """One artifact in the graph, with all that runs have said of it.

    Attributes:
        key: The node's identity: its digest, or ``uri:`` and its URI.
        seen: Each run's description, oldest first; the last one is shown.
        state: What is at its places now, if somebody has looked: ``changed`` means that another
            content is there.
    """

    key: str
    seen: tuple[Artifact, ...]
    state: ArtifactState | None = None

    @property
    def artifact(self) -> Artifact:
        """The latest description."""
        return self.seen[-1]

    @property
    def uris(self) -> tuple[str, ...]:
        """All places where it was seen, the latest first."""
        return tuple(dict.fromkeys(artifact.uri for artifact in reversed(self.seen)))


Node = RunNode | ArtifactNode


@dataclass(frozen=True)
class LineageGraph:
    """Nodes by key and edges along the data's way. Immutable.

    Attributes:
        nodes: All nodes, runs oldest first, each after what it read.
        edges: Pairs of keys (from, to).
        focus: The key of the node that was asked for, if one was.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: tuple[tuple[str, str], ...] = ()
    focus: str | None = None

    @property
    def artifacts(self) -> tuple[ArtifactNode, ...]:
        """The artifacts among the nodes."""
        return tuple(node for node in self.nodes.values() if isinstance(node, ArtifactNode))

    @property
    def runs(self) -> tuple[RunNode, ...]:
        """The runs among the nodes."""
        return tuple(node for node in self.nodes.values() if isinstance(node, RunNode))

    @property
    def changed(self) -> tuple[ArtifactNode, ...]:
        """The artifacts whose places hold another content now."""
        return tuple(node for node in self.artifacts if node.state == "changed")

    def sources(self, key: str) -> tuple[Node, ...]:
        """Return the nodes that lead to a node: a run's inputs, an artifact's makers."""
        return tuple(self.nodes[start] for start, end in self.edges if end == key)

    def targets(self, key: str) -> tuple[Node, ...]:
        """Return the nodes that a node leads to: a run's outputs, an artifact's readers."""
        return tuple(self.nodes[end] for start, end in self.edges if start == key)

    def around(self, focus: str, direction: Direction = "both") -> LineageGraph:
        """Return the part of the graph that led to ``focus``, or came of it, or both."""
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
        """Return the graph with the state that ``observe`` finds of each artifact."""
        nodes = {
            key: replace(node, state=observe(node)) if isinstance(node, ArtifactNode) else node
            for key, node in self.nodes.items()
        }
        return replace(self, nodes=nodes)

    def with_artifact(self, artifact: Artifact) -> LineageGraph:
        """Return the graph with an artifact that no run may have recorded, as the focus."""
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
    """Return the graph of all runs and artifacts of ``records``."""
    builder = _Builder()
    for record in sorted(records, key=lambda record: (record.started_at, record.id)):
        builder.add(record)
    return LineageGraph(dict(builder.nodes), tuple(dict.fromkeys(builder.edges)))


class _Builder:
    """Adds runs in the order of time, so that a URI means what was there last."""

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
    """Return a description with what an earlier one of the same thing said and it does not."""
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
