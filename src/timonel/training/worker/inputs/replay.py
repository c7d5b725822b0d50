"""Functions that a script maps over loaded data, replayed by the exported model on raw input.

A model that was fitted on ``load(...).map(function)`` predicts from the function's result. The
function can run in the served model if its inputs for the model come from the loaded ones alone:
not from the labels, and without Python code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.training.worker.inputs.fit_data import any_rows
from timonel.training.worker.private import row_dependence

_RANDOM = ("Random", "StatelessRandom", "StatefulUniform", "Multinomial", "TruncatedNormal")


class NotReplayableError(Exception):
    """The model's inputs cannot be made from raw ones; the message says why."""


@dataclass(frozen=True)
class Replay:
    """Functions mapped over a load, for batches of any size."""

    element: Any  # the structure of the load's elements, as ``tf.TensorSpec``
    function: Any  # takes the parts of an element, and returns the mapped element
    used: frozenset[str] | None  # inputs that the model's depend on; None if they have no names

    def mapped(self, *parts: Any) -> Any:
        """Return the model's input, and what follows it, for the parts of an element."""
        found = self.function(*parts)
        return found if isinstance(found, tuple) else (found,)

    def inputs(self, x: Any) -> Any:
        """Return the model's input for loaded inputs, of which unused columns may be missing."""
        rows = tf.shape(tf.nest.flatten(x)[0])[0]

        def empty(spec: tf.TensorSpec) -> Any:
            return tf.zeros([rows, *(size or 0 for size in spec.shape[1:])], spec.dtype)

        whole, *rest = self.element
        if isinstance(whole, Mapping):
            x = {name: x[name] if name in x else empty(spec) for name, spec in whole.items()}
        return self.mapped(x, *tf.nest.map_structure(empty, rest))[0]


def replay_of(stream: Any, functions: Sequence[Callable[..., Any]]) -> Replay | None:
    """Return the ``functions`` mapped over ``stream``; None if they draw random numbers."""
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(stream.element_spec)):
        raise NotReplayableError("the loaded data hold ragged or sparse tensors")
    element = tf.nest.map_structure(any_rows, stream.element_spec)
    function = tf.function(_composed(functions), input_signature=list(element))
    traced = function.get_concrete_function()
    names = {node.op for node in row_dependence.nodes(traced.graph.as_graph_def())}
    if any("PyFunc" in name for name in names):
        raise NotReplayableError("a function of map runs Python code")
    if any(name.startswith(_RANDOM) for name in names):
        return None  # augmentation, which is for training only
    outputs = traced.structured_outputs
    made = tf.nest.flatten(outputs[0] if isinstance(outputs, tuple) else outputs)
    reached = _reached(made)
    count, leaves = len(tf.nest.flatten(element)), len(tf.nest.flatten(element[0]))
    is_used = [id(tensor) in reached for tensor in traced.inputs[:count]]
    if any(is_used[leaves:]):
        raise NotReplayableError("a function of map makes the inputs from the labels, too")
    used = None
    if isinstance(element[0], Mapping):
        named = zip(sorted(element[0]), is_used, strict=False)
        used = frozenset(name for name, used in named if used)
    return Replay(element, function, used)


def _composed(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def apply(*parts: Any) -> Any:
        found: Any = parts
        for function in functions:
            found = function(*found) if isinstance(found, tuple) else function(found)
            if isinstance(found, list):
                found = tuple(found)
        return found

    return apply


def _reached(tensors: Sequence[Any]) -> set[int]:
    """Return the identities of all tensors that ``tensors`` are computed from."""
    waiting, found = list(tensors), set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in found:
            found.add(id(tensor))
            waiting += [*tensor.op.inputs]
            waiting += [each for op in tensor.op.control_inputs for each in op.inputs]
    return found
