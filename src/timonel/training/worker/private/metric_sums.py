"""Find metrics whose variables are no sums over batches, so that replicas do not add up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import hidden_state, row_dependence

_KERASES = ("keras.", "tf_keras.")


def require_sums(metrics: Iterable[Any], graph: Any, known: Iterable[str]) -> None:
    """Check that a step adds to the variables of the script's metrics.

    Args:
        metrics: Metrics of the process.
        graph: Graph of the step that is traced.
        known: Names of its operations before the step.

    Raises:
        SpecError: It sets one to another value, such as a maximum.
    """
    for metric in metrics:
        if type(metric).__module__.startswith(_KERASES):
            continue
        for variable in metric.variables:
            inner = hidden_state.tensor_variable(variable)
            if inner.aggregation == tf.VariableAggregation.SUM and any(
                row_dependence.adds(value, reads) is False
                for value, reads in _assigned(inner, graph, set(known))
            ):
                raise SpecError(
                    f"the metric {metric.name} sets its variable {variable.name} to a value that "
                    "is no sum over batches, so that those of several replicas do not give it",
                    hint="keep sums in its variables, or train with one worker and one device",
                )


def _assigned(variable: Any, graph: Any, known: set[str]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each value that a step assigns to a variable, and what it has read of it."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    handles = {id(each.handle) for each in (variable.values if is_distributed else [variable])}
    mine = {inner.name for outer, inner in graph.captures if id(outer) in handles}
    found = [each for each in graph.get_operations() if each.name not in known and each.inputs]
    of_it = [each for each in found if each.inputs[0].name in mine]
    reads = [each.outputs[0] for each in of_it if each.type == "ReadVariableOp"]
    for each in of_it:
        if each.type == "AssignVariableOp":
            yield each.inputs[1], reads
