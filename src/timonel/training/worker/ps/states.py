"""Variables that a step changes besides its gradients."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from timonel.training.worker.private import hidden_state, ps_variables


@dataclass(frozen=True)
class StepState:
    """A variable that a step changes besides its gradients."""

    variable: Any  # TensorFlow's own
    is_metric: bool = False  # changes by all pieces are summed
    is_seed: bool = False  # a random generator's state: each piece draws different numbers

    @property
    def goes_to_chief(self) -> bool:
        """Whether the chief, not a parameter server, receives its change."""
        return self.is_seed or "/job:ps" not in self.variable.device

    def elsewhere(self, batch: Any, part: Any) -> Any:
        """Return a generator's offset for draws unique to a part of a batch.

        Batches count since the state was last set: the first part of 0 draws the same numbers as
        one process.
        """
        if self.variable.shape.num_elements() == 2:  # Keras 3: a seed, and the draws so far
            return [part * 65536, batch * 4096]
        return [0, part, batch]  # tf.random.Generator: a counter of two words, and a key


def states_of(model: Any) -> list[StepState]:
    """Return metrics' and generators' states, and other non-trainable variables of a model."""
    trained = {id(ps_variables.raw(variable)) for variable in model.trainable_variables}
    metrics = itertools.chain.from_iterable(metric.variables for metric in model.metrics)
    found: dict[int, StepState] = {}
    for variable in map(ps_variables.raw, metrics):
        found[id(variable)] = StepState(variable, is_metric=True)
    for _, generator in hidden_state.random_variables(model):
        variable = ps_variables.raw(generator)
        found[id(variable)] = StepState(variable, is_seed=True)
    scalars = [value for value in vars(model).values() if isinstance(value, tf.Variable)]
    others = [*model.non_trainable_variables, *scalars]
    for variable in map(ps_variables.raw, others):
        if id(variable) not in trained:
            state = StepState(variable, is_seed=ps_variables.is_seed(variable))
            found.setdefault(id(variable), state)
    return list(found.values())


def begin(state: StepState, draw: Any) -> tuple[Any, Any]:
    """Return a temporary variable's handle and its initial value; when traced."""
    variable = state.variable
    # Changes to a metric are summed, so it starts at zero; other states continue.
    value = tf.zeros(variable.shape, variable.dtype) if state.is_metric else variable.read_value()
    if state.is_seed:
        # Equal for repeated attempts at a piece.
        value += tf.cast(tf.stack(state.elsewhere(*tf.unstack(draw))), variable.dtype)
    handle = ps_variables.temporary(variable.dtype, variable.shape)
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return handle, value


def change_of(state: StepState, handle: Any, before: Any) -> Any:
    """Return the change of a state since its beginning; when traced."""
    after = tf.raw_ops.ReadVariableOp(resource=handle, dtype=state.variable.dtype)
    after.set_shape(state.variable.shape)
    if state.variable.dtype == tf.bool:
        return tf.cast(after, tf.int32) - tf.cast(before, tf.int32)
    return after - before
