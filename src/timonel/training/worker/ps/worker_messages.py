"""Process workers' step results: update the chief's states and build logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.training.worker.private import ps_variables
from timonel.training.worker.ps.states import StepState
from timonel.training.worker.ps.tracing import TracedStep

Vectors = Sequence[Any]
"""Results of a step's parts, each as returned by `TracedStep.function`."""


class StepResults:
    """Processes the results of steps' parts. Used only by the chief's thread."""

    def __init__(self, model: Any, step: TracedStep) -> None:
        self._model = model
        self._step = step
        self._results = tf.function(self._read_results)
        self._counted: frozenset[str] | None = None
        self._drawn: dict[int, Any] = {}

    def add(self, vectors: Vectors, shares: Sequence[float]) -> None:
        """Add an update's results to the chief's states; parts have fractions of all rows."""
        begin = 0
        for state in self._step.sent:
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
        """Advance random generators past the batches since the last rest, as one process would."""
        for state in self._step.sent:
            if state.is_seed:
                drawn = self._drawn.pop(id(state.variable))
                moved = drawn if batches == 1 else state.elsewhere(batches, 0)
                _assign_add(state.variable, np.asarray(moved))

    def logs(self, vectors: Vectors, shares: Sequence[float]) -> dict[str, Any]:
        """Return Keras' logs: running results of metrics, else the step's values."""
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
        """Return the parts' mean of each value that the step returned."""
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
        """Return running metric results, by metric name and by log name."""
        own = {}
        for name, (metric, key) in self._step.metrics.items():
            if self._is_updated(metric):
                own[name] = metric.result() if key is None else metric.result()[key]
        return self._model.get_metrics_result(), own

    def _counted_names(self) -> list[str]:
        """Return the names of metric results that the step updates."""
        # A step may return its own value under the name of a metric that it does not update, as is
        # usual with the loss.
        found: list[str] = []
        for metric in self._model.metrics:
            if self._is_updated(metric):
                result = metric.result()
                found += result if isinstance(result, dict) else [metric.name]
        return found

    def _is_updated(self, metric: Any) -> bool:
        sent = {id(state.variable) for state in self._step.sent}
        return any(id(ps_variables.raw(variable)) in sent for variable in metric.variables)


def _add(state: StepState, parts: Vectors, shares: Sequence[float]) -> None:
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
