"""Render lineage as a text tree, a rich tree or JSON."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timonel.tracking.graph import LineageGraph, Node, RunNode

if TYPE_CHECKING:
    from rich.tree import Tree

_STYLES = {"run": "cyan", "artifact": "bold", "detail": "dim", "warning": "yellow"}
_NOTES = {
    "changed": "changed since",
    "missing": "missing",
}


@dataclass(frozen=True)
class Branch:
    """Node of the displayed tree, with its children."""

    node: Node
    children: tuple[Branch, ...]
    is_repeated: bool = False


def branches(graph: LineageGraph, *, upstream: bool = True) -> Branch:
    """Return the tree of the focus's upstream or downstream nodes.

    A node that is reached twice has children only at its first occurrence.
    """
    assert graph.focus is not None
    step = graph.sources if upstream else graph.targets
    return _branch(graph.nodes[graph.focus], step, set())


def as_lines(graph: LineageGraph, *, relative_to: Path | None = None) -> list[str]:
    """Return the lineage as lines of text: the focus's origin, then uses.

    Args:
        graph: A graph with a focus.
        relative_to: Shorten paths below this folder; the current folder by default.
    """
    from rich.console import Console  # noqa: PLC0415 - needed only for printing

    # As wide as no line is: rich breaks longer lines.
    console = Console(width=1 << 16, color_system=None, file=io.StringIO())
    with console.capture() as capture:
        console.print(as_rich(graph, relative_to=relative_to))
    return [line.rstrip() for line in capture.get().splitlines()]


def as_rich(graph: LineageGraph, *, relative_to: Path | None = None) -> Tree:
    """Return the lineage as a tree for rich to print; arguments as of `as_lines`."""
    from rich.tree import Tree  # noqa: PLC0415 - needed only for printing

    base = relative_to or Path.cwd()
    origin, use = branches(graph), branches(graph, upstream=False)
    tree = Tree(_title(origin.node, base), guide_style="dim")
    _grow(tree, origin.children, base)
    if use.children:
        _grow(tree.add("[dim]used by[/]"), use.children, base)
    return tree


def as_json(graph: LineageGraph) -> dict[str, Any]:
    """Return the graph as JSON-able values: ``focus``, ``nodes`` and ``edges``."""
    return {
        "focus": graph.focus,
        "nodes": [_node_json(node) for node in graph.nodes.values()],
        "edges": [{"from": start, "to": end} for start, end in graph.edges],
    }


def _branch(node: Node, step: Callable[[str], Iterable[Node]], shown: set[str]) -> Branch:
    if node.key in shown:
        return Branch(node, (), is_repeated=bool(tuple(step(node.key))))
    shown.add(node.key)
    return Branch(node, tuple(_branch(child, step, shown) for child in step(node.key)))


def _grow(tree: Tree, children: tuple[Branch, ...], base: Path) -> None:
    for child in children:
        more = " [dim](see above)[/]" if child.is_repeated else ""
        _grow(tree.add(_title(child.node, base) + more), child.children, base)


def _title(node: Node, base: Path) -> str:
    from rich.markup import escape  # noqa: PLC0415 - needed only for printing

    return "  ".join(f"[{_STYLES[kind]}]{escape(text)}[/]" for kind, text in _parts(node, base))


def _parts(node: Node, base: Path) -> Iterator[tuple[str, str]]:
    """Yield the parts of a node's line, each with its style."""
    if isinstance(node, RunNode):
        record = node.record
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started_at))
        yield "run", f"{record.kind} run {record.id}"
        yield "detail", ", ".join(filter(None, (record.name, record.status, started)))
        return
    artifact = node.artifact
    yield "artifact", f"{artifact.type} {_shown(artifact.uri, base)}"
    if artifact.digest:
        yield "detail", artifact.short_digest
    if node.state in _NOTES:
        yield "warning", f"({_NOTES[node.state]})"


def _shown(uri: str, base: Path) -> str:
    path = Path(uri)
    return str(path.relative_to(base)) if path.is_relative_to(base) and path != base else uri


def _node_json(node: Node) -> dict[str, Any]:
    if isinstance(node, RunNode):
        record = node.record
        return {
            "key": node.key,
            "node": "run",
            "id": record.id,
            "kind": record.kind,
            "name": record.name,
            "status": record.status,
            "started_at": record.started_at,
            "ended_at": record.ended_at,
        }
    return {
        "key": node.key,
        "node": "artifact",
        "type": node.artifact.type,
        "name": node.artifact.name,
        "digest": node.artifact.digest,
        "uris": list(node.uris),
        "state": node.state,
        "metadata": dict(node.artifact.metadata),
    }
