"""References within a model's graph and functions. Pure: protos in, names out."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
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
_MAX_STEPS = 300_000
"""Limit on values followed to their origins, about a second. Models need a few for each table."""

Place = tuple[str, str]
"""Scope and name of a node."""


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
        self._arguments: dict[str, dict[str, int]] = {}
        # Functions with callers, or with arguments, that no node shows.
        self._obscure: set[str] = set()
        self._defaults: dict[str, list[str]] = {}
        for function in library.function:
            name = function.signature.name
            self._listed.append((name, function.node_def))
            self._nodes[name] = {node.name: node for node in function.node_def}
            arguments = function.signature.input_arg
            self._arguments[name] = {each.name: at for at, each in enumerate(arguments)}
            omitted = {each.name: each.default_value for each in function.signature.attr}
            self._defaults[name] = list(_functions_in(omitted))
            if _INTERCHANGEABLE in function.attr or any(map(_is_list, arguments)):
                self._obscure.add(name)
        # Gradients are called with other arguments than their functions.
        self._obscure.update(each.gradient_func for each in library.gradient)
        self._obscure.update(*self._defaults.values())
        self._objects = meta_graph.object_graph_def
        self._assets: list[str] = [
            _node_of(each.tensor_info.name) for each in meta_graph.asset_file_def
        ]
        self._calls: dict[str, list[_Call]] = defaultdict(list)
        self._references: dict[Place, list[str]] = {}
        self._steps = 0
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

    def node(self, name: str) -> Any:
        """Return a node of the main graph, or None."""
        return self._nodes[MAIN].get(name)

    def repeated(self) -> Iterator[tuple[str, str]]:
        """Yield scope and name of each node or function that another one hides."""
        scopes: set[str] = set()
        for scope, nodes in self._listed:
            if scope in scopes:
                yield scope, ""
            scopes.add(scope)
            if len(self._nodes[scope]) != len(nodes):
                names = Counter(node.name for node in nodes)
                yield from ((scope, name) for name, count in names.items() if count > 1)

    def referred(self) -> Iterator[tuple[str, str, str]]:
        """Yield scope, name of the node and function name for each reference to a function."""
        for (scope, node), names in self._references.items():
            for name in names:
                yield scope, node, name
        for scope, names in self._defaults.items():
            for name in names:
                yield scope, "", name

    def origins(self, scope: str, reference: str, unfed: Collection[Place]) -> set[str]:
        """Return the origins of a value.

        Args:
            unfed: Places where names of files are not fed, so that variables get other values.

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
            behind = self._behind(*place, unfed, found)
            pending += behind
            self._steps += 1 + len(behind)
            if self._steps > _MAX_STEPS:
                return {UNKNOWN}
        return found

    def reached_from(self, roots: Iterable[str]) -> set[Place]:
        """Return scope and name of every node that runs with ``roots``.

        The roots are nodes of the main graph, and names of functions.
        """
        roots = set(roots)
        pending = [(MAIN, _node_of(root)) for root in roots]
        for name in self._obscure | (roots & self._arguments.keys()):
            pending += [(name, node) for node in self._nodes.get(name, ())]
        seen: set[Place] = set()
        entered: set[str] = set()
        while pending:
            place = pending.pop()
            scope, name = place
            if place in seen or (node := self._nodes[scope].get(name)) is None:
                continue
            seen.add(place)
            pending += [(scope, _node_of(each)) for each in node.input]
            called = self._references.get(place, ())
            for function in set(called) - entered:
                pending += [(function, each) for each in self._nodes.get(function, ())]
            entered.update(called)
        return seen

    def _refer(self, scope: str, node: Any) -> None:
        names = list(_functions_in(node.attr))
        called = node.attr["f"].func.name if node.op in _CALLS and "f" in node.attr else None
        if node.op in self._arguments:
            called = node.op
            names.append(node.op)
        once = called is not None and names.count(called) == 1
        for name in names:
            self._calls[name].append(_Call(scope, node, once and name == called))
        if names:
            self._references[scope, node.name] = names

    def _behind(
        self, scope: str, reference: str, unfed: Collection[Place], found: set[str]
    ) -> list[Place]:
        name = _node_of(reference)
        position = self._arguments.get(scope, {}).get(name)
        if position is not None:
            return self._passed(scope, position, found)
        node = self._nodes[scope].get(name)
        if node is not None and node.op in _PASSING and node.input:
            return [(scope, node.input[0])]
        if scope == MAIN and node is not None and node.op == "ReadVariableOp":
            return self._assigned(_node_of(node.input[0]), unfed, found)
        found.add(name if scope == MAIN and node is not None else UNKNOWN)
        return []

    def _assigned(self, variable: str, unfed: Collection[Place], found: set[str]) -> list[Place]:
        """Return the values assigned to a variable of the main graph.

        TensorFlow keeps an asset's path in a variable. Any other access to the variable than these
        assignments may write any value, so it adds `UNKNOWN`.
        """
        places = []
        node = self._nodes[MAIN].get(variable)
        if node is None or node.op != "VarHandleOp" or self._is_shared(node):
            found.add(UNKNOWN)
        for user in self._users.get(variable, ()):
            is_assignment = user.op == "AssignVariableOp" and _node_of(user.input[1]) != variable
            if is_assignment and (MAIN, user.name) not in unfed:
                places.append((MAIN, user.input[1]))
            elif user.op not in _READING:
                found.add(UNKNOWN)
        return places

    @functools.cached_property
    def _users(self) -> dict[str, list[Any]]:
        """Nodes of the main graph by each node that is an input."""
        users = defaultdict(list)
        for node in self._nodes[MAIN].values():
            for name in {_node_of(each) for each in _data(node)}:
                users[name].append(node)
        return users

    @functools.cached_property
    def _handles(self) -> Counter[str]:
        """Number of nodes by each name that their variable may have."""
        names: Counter[str] = Counter()
        for scope, node in self.nodes():
            if node.op == "VarHandleOp":
                # In a function, the caller may set the name.
                names.update(_shared_names(node) if scope == MAIN else {UNKNOWN})
        return names

    def _is_shared(self, variable: Any) -> bool:
        handles = self._handles
        return UNKNOWN in handles or any(handles[name] > 1 for name in _shared_names(variable))

    def _passed(self, function: str, position: int, found: set[str]) -> list[Place]:
        """Return the values passed for an argument by all calls."""
        places = []
        if function in self._obscure:
            found.add(UNKNOWN)
        if function in self._objects.concrete_functions:
            found.add(self._bound(function, position))
        for call in self._calls[function]:
            self._steps += len(call.node.input)
            data = _data(call.node)
            if call.passes_arguments and position < len(data):
                places.append((call.scope, data[position]))
            else:
                found.add(UNKNOWN)
        return places

    def _bound(self, function: str, position: int) -> str:
        """Return the origin of an argument that TensorFlow 2 passes to a function of an object."""
        bound = self._objects.concrete_functions[function].bound_inputs
        index = position - len(self._arguments[function]) + len(bound)
        if index >= 0 and 0 <= bound[index] < len(self._objects.nodes):
            node = self._objects.nodes[bound[index]]
            number = node.asset.asset_file_def_index
            if node.WhichOneof("kind") == "asset" and 0 <= number < len(self._assets):
                return self._assets[int(number)]
        return UNKNOWN


def _data(node: Any) -> list[str]:
    """Return a node's inputs without those of control."""
    return [each for each in node.input if not each.startswith("^")]


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


def _is_list(argument: Any) -> bool:
    """Return whether an argument stands for several values, which shift those after it."""
    return bool(argument.number_attr or argument.type_list_attr)


def _shared_names(node: Any) -> set[str]:
    """Return names of a variable: sessions take an empty one, TensorFlow 2 the node's instead."""
    given = (
        node.attr["shared_name"].s.decode(errors="replace") if "shared_name" in node.attr else ""
    )
    return {given, given or str(node.name)}


def _node_of(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]
