"""Find metrics whose variables are no sums over batches, so that replicas do not add up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import hidden_state, row_dependence


def require_sums(
    metrics: Iterable[Any], graph: Any, handles: Callable[[Any], Collection[str]], ours: set[str]
) -> None:
    """Check that a step adds to the variables of the script's metrics.

    Args:
        metrics: Metrics that it may update.
        graph: Graph of the step that is traced.
        handles: Returns the names of a variable's handles in the graph.
        ours: Names of operations that are not the script's.

    Raises:
        SpecError: It sets a variable to another value, such as a maximum.
    """
    operations = [each for each in graph.get_operations() if each.inputs and each.name not in ours]
    for metric in metrics:
        if hidden_state.is_kerases(type(metric)):
            continue
        for variable in metric.variables:
            names = handles(variable)
            if any(
                row_dependence.adds(value, reads) is False
                for value, reads in _assigned(operations, names)
            ):
                raise SpecError(
                    f"the metric {metric.name} sets its variable {variable.name} to a value that "
                    "is no sum over batches, so that those of several replicas do not give it",
                    hint="keep sums in its variables, or train with one worker and one device",
                )


def captured(graph: Any) -> Callable[[Any], Collection[str]]:
    """Return a function that names the handles with which a graph has captured summed variables."""
    names = {id(outer): inner.name for outer, inner in graph.captures}

    def handles(variable: Any) -> list[str]:
        inner = hidden_state.tensor_variable(variable)
        if inner.aggregation != tf.VariableAggregation.SUM:
            return []
        is_distributed = isinstance(inner, tf.distribute.DistributedValues)
        found = inner.values if is_distributed else [inner]
        return [names[id(each.handle)] for each in found if id(each.handle) in names]

    return handles


def _assigned(operations: Sequence[Any], handles: Collection[str]) -> Iterator[tuple[Any, Any]]:
    """Yield each value that is assigned to a variable, and what was read of it."""
    found = [each for each in operations if each.inputs[0].name in handles]
    reads = [each.outputs[0] for each in found if each.type == "ReadVariableOp"]
    for each in found:
        if each.type == "AssignVariableOp":
            yield each.inputs[1], reads
