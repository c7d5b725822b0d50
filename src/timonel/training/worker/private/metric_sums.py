"""Find metrics whose variables are no sums over batches, so that replicas do not add up."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from timonel.errors import SpecError
from timonel.training.worker.private import hidden_state, ps_variables, row_dependence


@contextlib.contextmanager
def required(metrics: Callable[[], Iterable[Any]]) -> Iterator[None]:
    """Refuse a step, traced in the block, that does not add to its metrics' variables."""
    if tf.executing_eagerly():
        yield
        return
    graph = ops.get_default_graph()
    before = {each.name for each in graph.get_operations()}
    yield
    reads, values = defaultdict(list), defaultdict(list)
    for each in graph.get_operations():
        if each.type == "ReadVariableOp" and each.name not in before:
            reads[each.inputs[0].name].append(each.outputs[0])
        if each.type == "AssignVariableOp" and each.name not in before:
            values[each.inputs[0].name].append(each.inputs[1])
    for metric in metrics():
        for variable in () if hidden_state.is_kerases(type(metric)) else metric.variables:
            for name in _handles(variable, graph):
                if any(row_dependence.adds(value, reads[name]) is False for value in values[name]):
                    raise SpecError(
                        f"the metric {metric.name} sets its variable {variable.name} to a value "
                        "that is no sum over batches, so that those of several replicas do not "
                        "give it",
                        hint="keep sums in its variables, or train with one worker and one device",
                    )


def _handles(variable: Any, graph: Any) -> list[str]:
    """Return the names in a graph of the handles of a variable whose changes are summed."""
    inner = hidden_state.tensor_variable(variable)
    is_distributed = isinstance(inner, tf.distribute.DistributedValues)
    handles = [
        each.handle for each in (inner.values if is_distributed else [ps_variables.raw(variable)])
    ]
    # Parameter servers sum the changes of all variables with handles of the step.
    names = [each.name for each in handles if getattr(each, "graph", None) is graph]
    if inner.aggregation == tf.VariableAggregation.SUM:
        captured = {id(outer): inside.name for outer, inside in graph.captures}
        names += [captured[id(each)] for each in handles if id(each) in captured]
    return names
