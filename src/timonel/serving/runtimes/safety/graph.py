"""References within a model's graph and functions. Pure: protos in, names out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAIN = ""
"""The scope of nodes outside of functions."""
UNKNOWN = "?"
"""An unknown origin of a value."""

# Operations that return their first input unchanged.
_PASSING = frozenset({"Identity", "StopGradient", "Snapshot"})
_READING = frozenset({"ReadVariableOp", "VarIsInitializedOp"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# TensorFlow may replace such a function by another one with the same value of this attribute.
_INTERCHANGEABLE = "api_implements"


@dataclass(frozen=True)
class _Call:
    """A node that refers to a function."""

    scope: str
    node: Any
    passes_arguments: bool


class ModelGraph:
    """Nodes of a MetaGraphDef by scope: main graph and library functions."""

    def __init__(self, meta_graph: Any) -> None:
        library = meta_graph.graph_def.library
        self._listed: list[tuple[str, Any]] = [(MAIN, meta_graph.graph_def.node)]
        self._nodes: dict[str, dict[str, Any]] = {
            MAIN: {node.name: node for node in meta_graph.graph_def.node}
        }
        self._arguments: dict[str, tuple[str, ...]] = {}
        self._interchangeable: set[str] = set()
        for function in library.function:
            name = function.signature.name
            self._listed.append((name, function.node_def))
            self._nodes[name] = {node.name: node for node in function.node_def}
            self._arguments[name] = tuple(each.name for each in function.signature.input_arg)
            if _INTERCHANGEABLE in function.attr:
                self._interchangeable.add(name)
        # Gradients are called with other arguments than their functions.
        self._interchangeable.update(each.gradient_func for each in library.gradient)
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._references: dict[tuple[str, str], list[str]] = {}
        for scope, node in self.nodes():
            self._refer(scope, node)

    def nodes(self) -> Iterator[tuple[str, Any]]:
        """Yield every node with its scope."""
        for scope, nodes in self._listed:
            for node in nodes:
                yield scope, node

    def is_function(self, name: str) -> bool:
        """Return whether ``name`` is a function of the library."""
        return name in self._arguments

    def referred(self) -> Iterator[tuple[str, Any, str]]:
        """Yield scope, node and function name for each reference to a function."""
        for (scope, node), names in self._references.items():
            for name in names:
                yield scope, self._nodes[scope][node], name

    def origins(self, scope: str, reference: str) -> set[str]:
        """Return the origins of a value.

        Args:
            scope: The scope of its use.
            reference: An input of a node there.

        Returns:
            Names of nodes of the main graph, or `UNKNOWN`; empty if no call leads there.
        """
        found: set[str] = set()
        pending, seen = [(scope, reference)], set()
        while pending:
            place = pending.pop()
            if place in seen:
                continue
            seen.add(place)
            pending += self._behind(*place, found)
        return found

    def reached_from(self, roots: Iterable[str]) -> set[tuple[str, str]]:
        """Return scope and name of every node that runs with ``roots``.

        The roots are nodes of the main graph.
        """
        pending = [(MAIN, _node_of(root)) for root in roots]
        for name in self._interchangeable:
            pending += [(name, node) for node in self._nodes.get(name, ())]
        seen: set[tuple[str, str]] = set()
        while pending:
            place = pending.pop()
            scope, name = place
            if place in seen or (node := self._nodes[scope].get(name)) is None:
                continue
            seen.add(place)
            pending += [(scope, _node_of(each)) for each in node.input]
            for function in self._references.get(place, ()):
                pending += [(function, each) for each in self._nodes.get(function, ())]
        return seen

    def _refer(self, scope: str, node: Any) -> None:
        names = list(_functions_in(node.attr))
        called = node.attr["f"].func.name if node.op in _CALLS and "f" in node.attr else None
        if node.op in self._arguments:
            called = node.op
            names.append(node.op)
        for name in names:
            passes = name == called and names.count(name) == 1
            self._calls[name].append(_Call(scope, node, passes))
        if names:
            self._references[scope, node.name] = names

    def _behind(self, scope: str, reference: str, found: set[str]) -> list[tuple[str, str]]:
        name = _node_of(reference)
        arguments = self._arguments.get(scope, ())
        if name in arguments:
            return self._passed(scope, arguments.index(name), found)
        node = self._nodes[scope].get(name)
        if node is not None and node.op in _PASSING and node.input:
            return [(scope, node.input[0])]
        if scope == MAIN and node is not None and node.op == "ReadVariableOp":
            return self._assigned(_node_of(node.input[0]), found)
        found.add(name if scope == MAIN and node is not None else UNKNOWN)
        return []

    def _assigned(self, variable: str, found: set[str]) -> list[tuple[str, str]]:
        """Return the values assigned to a variable of the main graph.

        TensorFlow keeps an asset's path in a variable. Any other access to the variable than these
        assignments may write any value, so it adds `UNKNOWN`.
        """
        places = []
        nodes = self._nodes[MAIN]
        if (
            variable not in nodes
            or nodes[variable].op != "VarHandleOp"
            or self._is_shared(variable)
        ):
            found.add(UNKNOWN)
        for node in nodes.values():
            if variable not in map(_node_of, (each for each in node.input if each[:1] != "^")):
                continue
            if node.op == "AssignVariableOp" and _node_of(node.input[1]) != variable:
                places.append((MAIN, node.input[1]))
            elif node.op not in _READING:
                found.add(UNKNOWN)
        return places

    def _is_shared(self, variable: str) -> bool:
        name = _shared_name(self._nodes[MAIN][variable])
        handles = [(scope, node) for scope, node in self.nodes() if node.op == "VarHandleOp"]
        # In a function, the caller may set the name.
        inside = any(scope != MAIN for scope, _ in handles)
        return inside or [_shared_name(node) for _, node in handles].count(name) > 1

    def _passed(self, function: str, position: int, found: set[str]) -> list[tuple[str, str]]:
        """Return the values passed for an argument by all calls."""
        places = []
        if function in self._interchangeable:
            found.add(UNKNOWN)
        for call in self._calls[function]:
            data = [each for each in call.node.input if not each.startswith("^")]
            if call.passes_arguments and position < len(data):
                places.append((call.scope, data[position]))
            else:
                found.add(UNKNOWN)
        return places


def _functions_in(attributes: Mapping[str, Any]) -> Iterator[str]:
    for value in attributes.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            yield value.func.name
            yield from _functions_in(value.func.attr)
        elif kind == "list":
            for each in value.list.func:
                yield each.name
                yield from _functions_in(each.attr)


def _shared_name(node: Any) -> str:
    given = (
        node.attr["shared_name"].s.decode(errors="replace") if "shared_name" in node.attr else ""
    )
    return given or str(node.name)


def _node_of(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]
