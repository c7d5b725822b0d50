"""What workers tell the chief of a step: it counts what states have changed by, and makes logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.training.worker.private import ps_variables
from timonel.training.worker.ps.states import State
from timonel.training.worker.ps.tracing import Step

Vectors = Sequence[Any]
"""What the parts of a step have returned, each as `Step.function` does."""


class Telling:
    """Counts what the parts of steps have told. Used by the chief's own thread only.

    Args:
        model: The model.
        step: What workers compute.
    """

    def __init__(self, model: Any, step: Step) -> None:
        self._model = model
        self._step = step
        self._results = tf.function(self._read_results)
        self._counted: frozenset[str] | None = None
        self._drawn: dict[int, Any] = {}

    def add(self, vectors: Vectors, shares: Sequence[float]) -> None:
        """Add what an update's parts have told to the states that the chief keeps.

        Args:
            vectors: Of each part.
            shares: Each part's share of all rows.
        """
        begin = 0
        for state in self._step.told:
            end = begin + int(state.variable.shape.num_elements())
            parts = [vector[begin:end] for vector in vectors]
            begin = end
            if state.is_seed:
                self._drawn[id(state.variable)] = np.max(parts, axis=0)
            else:
                _add(state, parts, shares)
        counter = ps_variables.train_counter(self._model)
        if self._step.optimizer is not None and counter is not None:
            counter.assign_add(1)

    def rest(self, batches: int) -> None:
        """Let generators go on from where the batches since the last rest have left them.

        After a single batch that is where one process would be.
        """
        for state in self._step.told:
            if state.is_seed:
                drawn = self._drawn.pop(id(state.variable))
                moved = drawn if batches == 1 else state.elsewhere(batches, 0)
                _assign_add(state.variable, np.asarray(moved))

    def logs(self, vectors: Vectors, shares: Sequence[float]) -> dict[str, Any]:
        """Return what Keras' own function would: running results of metrics, else this step's."""
        given = self._values(vectors, shares)
        results, own = self._results()
        if self._counted is None:
            self._counted = frozenset(self._counted_names())
        for name, value in results.items():
            if name in self._counted:
                given[name] = np.asarray(value) if not isinstance(value, dict) else value
        given.update({name: np.asarray(value) for name, value in own.items()})
        return {name: given[name] for name in self._step.log_names if name in given}

    def _values(self, vectors: Vectors, shares: Sequence[float]) -> dict[str, Any]:
        """Return the mean over the parts of what the step has returned itself."""
        sizes = {name: math.prod(shape) for name, shape in self._step.values.items()}
        begin = len(vectors[0]) - 1 - sum(sizes.values())
        means = np.average([vector[begin:-1] for vector in vectors], axis=0, weights=shares)
        given: dict[str, Any] = {}
        begin = 0
        for name, shape in self._step.values.items():
            value = means[begin : begin + sizes[name]].astype(np.float32)
            given[name] = value.reshape(shape) if shape else value[0]
            begin += sizes[name]
        return given

    def _read_results(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the running results of metrics by their names, and by those of the step."""
        told = {id(state.variable) for state in self._step.told}
        own = {}
        for name, (metric, key) in self._step.metrics.items():
            if any(id(ps_variables.raw(variable)) in told for variable in metric.variables):
                own[name] = metric.result() if key is None else metric.result()[key]
        return self._model.get_metrics_result(), own

    def _counted_names(self) -> list[str]:
        """Return the names of the results that the step itself has counted for.

        A step may return a value of its own under the name of a metric that it leaves alone, as
        is usual with the loss.
        """
        told = {id(state.variable) for state in self._step.told}
        found: list[str] = []
        for metric in self._model.metrics:
            if any(id(ps_variables.raw(variable)) in told for variable in metric.variables):
                result = metric.result()
                found += result if isinstance(result, dict) else [metric.name]
        return found


def _add(state: State, parts: Vectors, shares: Sequence[float]) -> None:
    variable = state.variable
    if state.is_metric:
        change = np.sum(parts, axis=0)
    elif variable.dtype.is_floating:
        change = np.average(parts, axis=0, weights=shares)
    else:
        change = parts[0]
    value = change.reshape(variable.shape.as_list())
    if variable.dtype == tf.bool:
        variable.assign(variable.numpy().astype(int) + value > 0)
    else:
        _assign_add(variable, value)


def _assign_add(variable: Any, value: Any) -> None:
    variable.assign_add(value.astype(variable.dtype.as_numpy_dtype))
