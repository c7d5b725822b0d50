"""Find out whether rows of a tensor in the graph of a step depend on each other.

The operations that compute the tensor run by themselves, on drawn rows: if one row changes and the
values of another row with it, these depend on it. So no list of operations is needed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_ROWS = 4
"""Rows to draw where their number is unknown."""
_SIZE = 5
"""Size of other axes where it is unknown."""
_ITERATORS = ("IteratorGetNext", "OptionalGetValue")
_CONSTANTS = frozenset({"Const", "VarHandleOp"})
_DRAWS = re.compile(
    r"State(ful|less)(Random|Standard|Truncated|Uniform)|Random(?!Shuffle)|TruncatedNormal"
)
_EFFECTS = re.compile(
    r"^Stateful[RSTU]|Assign|Apply|Collective|Enqueue|Insert|Print|PyFunc|ResourceScatter|Write"
)

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def is_data(value: Any) -> bool:
    """Whether a tensor enters the step from outside and is neither constant nor a variable."""
    if value.op.inputs:
        # Replicas get a value, or none, from conditions.
        optional = (each for each in value.op.inputs if each.dtype == tf.variant)
        return value.op.type.startswith(_ITERATORS) or any(map(is_data, optional))
    is_tensor = value.op.type not in _CONSTANTS and value.dtype != tf.resource
    return is_tensor and captured(value) is None


def mixes_rows(value: Any, given: Sequence[Any], rows: Any) -> bool | None:
    """Return whether rows of a tensor depend on other rows, or on their position.

    Each row of the batch may have become several; a tensor whose first axis is not that of the rows
    counts as mixing. ``given`` are tensors to draw, besides the data that enter the step. None is
    unknown: the operations have effects, are random, or reject drawn rows.
    """
    found = set()
    # The script has chosen the operations: some reject the values, or do not run by themselves.
    with contextlib.suppress(Exception), tf.init_scope(), tf.device("CPU:0"):
        compute, sources = _part(value, given)
        for factors in ((30, -30), (0,)):
            with contextlib.suppress(Exception):
                found.add(_mixes(compute, sources, rows, factors))
    return True if True in found else False if False in found else None


def adds(value: Any, before: Sequence[Any]) -> bool | None:
    """Return whether a value is that of ``before`` plus something independent; None if unknown."""
    names = {each.name for each in before}
    with contextlib.suppress(Exception), tf.init_scope(), tf.device("CPU:0"):
        compute, sources = _part(value, before)
        chance = np.random.default_rng(0)
        drawn = [_drawn(chance, source, _ROWS, is_binary=False) for source in sources]

        def at(shift: int) -> Array:
            moved = [
                each + shift if source.name in names else each
                for each, source in zip(drawn, sources, strict=True)
            ]
            return np.asarray(compute(*map(_converted, moved, sources)))

        return all(_equal(at(shift), at(0) + shift) for shift in (30, -30))
    return None


def _part(value: Any, given: Sequence[Any]) -> tuple[Function, list[Any]]:
    """Return a function that computes a tensor, and the tensors of the step that it takes."""
    known = {each.name for each in given if each.graph is value.graph}
    operations: set[str] = set()
    sources, outers, waiting = {}, {}, [value]
    while waiting:
        found = waiting.pop()
        if (outer := captured(found)) is not None:
            outers[found.name] = outer
        elif found.name in known or is_data(found) or _DRAWS.match(found.op.type):
            sources[found.name] = found
        elif found.op.name not in operations:
            operations.add(found.op.name)
            waiting += found.op.inputs
    part = _definition(value.graph, operations)
    if any(_EFFECTS.search(node.op) or "seed2" in node.attr for node in nodes(part)):
        raise ValueError("the operations have effects, or differ each time")

    def compute(*drawn: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        inputs = {name: graph.capture(outer) for name, outer in outers.items()}
        inputs |= dict(zip(sources, drawn, strict=True))
        if value.name not in inputs:
            inputs[value.name] = tf.graph_util.import_graph_def(part, inputs, [value.name])[0]
        return tf.cast(inputs[value.name], tf.float64)

    specs = [tf.TensorSpec(each.shape, each.dtype) for each in sources.values()]
    function = tf.function(compute, autograph=False).get_concrete_function(*specs)
    return function, list(sources.values())


def reached(values: Sequence[Any]) -> dict[str, Any]:
    """Return the tensors of their graph that values are computed from, by name."""
    found, waiting = {}, list(values)
    while waiting:
        value = waiting.pop()
        if value.name not in found:
            found[value.name] = value
            waiting += value.op.inputs
    return found


def captured(value: Any) -> Any:
    """Return the eager tensor that a graph, or those around it, have captured as this one."""
    while hasattr(value, "graph"):
        if value.op.type != "Placeholder":
            return None
        value = next((outer for outer, inner in value.graph.captures if inner is value), None)
    return value


def _definition(graph: Any, operations: set[str]) -> Any:
    """Return the definition of operations, without what only orders or places them."""
    whole = graph.as_graph_def()
    part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    for node in whole.node:
        if node.name not in operations:
            continue
        made = part.node.add(name=node.name, op=node.op)
        made.input.extend(each for each in node.input if not each.startswith("^"))
        for name, content in node.attr.items():
            if name != "_class":
                made.attr[name].CopyFrom(content)
    return part


def nodes(definition: Any) -> Iterator[Any]:
    """Yield all operations of a graph's definition, also those in functions that are called."""
    functions = {found.signature.name: found.node_def for found in definition.library.function}
    waiting = [definition.node]
    while waiting:
        for node in waiting.pop():
            yield node
            for content in node.attr.values():
                called = [content.func.name, *(each.name for each in content.list.func)]
                waiting += [functions.pop(name) for name in called if name in functions]


def _mixes(
    compute: Function, sources: Sequence[Any], rows: Any, factors: Sequence[int]
) -> bool | None:
    """Return whether rows change with others that are multiplied, or with 0 inverted."""
    count = rows if isinstance(rows, int) else _ROWS
    chance = np.random.default_rng(0)
    drawn = [_drawn(chance, source, count, is_binary=0 in factors) for source in sources]

    def values(change: Callable[[Array], Array]) -> Array:
        changed = [change(each) if each.ndim and len(each) == count else each for each in drawn]
        return np.asarray(compute(*map(_converted, changed, sources)))

    before = values(np.array)
    if count == 1 or not np.all(np.isfinite(before)) or not _equal(before, values(np.array)):
        return None
    if not before.ndim or not len(before) or len(before) % count:
        return True

    def in_rows(found: Array) -> Array:
        return np.reshape(found, [count, -1])

    for row in sorted({0, 1, count // 2, count - 1}):
        for factor in factors:
            after = values(functools.partial(_changed, row=row, factor=factor))
            if before.shape != after.shape or not _equal(
                *(np.delete(in_rows(found), row, axis=0) for found in (before, after))
            ):
                return True
    turned = values(lambda found: np.roll(found, 1, axis=0))
    is_constant = _equal(before, turned)
    return not is_constant and not _equal(np.roll(in_rows(before), 1, axis=0), in_rows(turned))


def _drawn(chance: Any, source: Any, rows: int, *, is_binary: bool) -> Array:
    """Return values of a tensor: in the domain of most functions, or equal in several rows."""
    shape = [size or (_SIZE if axis else rows) for axis, size in enumerate(source.shape)]
    if is_binary or not source.dtype.is_floating:
        return np.asarray(chance.integers(0, 2, shape))
    return np.asarray(chance.uniform(0.05, 0.95, shape))


def _changed(values: Array, row: int, factor: int) -> Array:
    changed = np.array(values)
    is_inverted = not factor or values.dtype.kind == "i"
    changed[row] = 1 - values[row] if is_inverted else factor * values[row]
    return changed


def _converted(values: Array, source: Any) -> Any:
    return tf.as_string(values) if source.dtype == tf.string else tf.cast(values, source.dtype)


def _equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-3, atol=1e-5))
