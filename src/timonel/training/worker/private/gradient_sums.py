"""Accumulate gradients of several batches in both Kerases' optimizers.

The sums are variables of the innermost optimizer, like its own, and each replica has its own
values: checkpoints store them per replica (`sums_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from timonel.training.worker.numerics.gradients import GradientPlan

_SUMS = "_timonel_sums"
_COUNT = "_timonel_batches"


def with_accumulation(
    optimizer: Any,
    found: list[Any],
    variables: list[Any],
    plan: GradientPlan,
    update: Callable[[list[Any]], None],
) -> Any:
    """Call ``update`` on each replica with the gradients, or their mean when due."""
    if plan.accumulate == 1:
        return update(found)
    inner = innermost(optimizer)
    count, all_sums = getattr(inner, _COUNT), getattr(inner, _SUMS)
    sums = [
        None if gradient is None else all_sums[_index(inner, variable)]
        for gradient, variable in zip(found, variables, strict=True)
    ]
    used = [total for total in sums if total is not None]
    for total, gradient in zip(sums, found, strict=True):
        if total is not None:
            total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
    count.assign_add(1)

    def make_update() -> None:
        update(
            [
                None if total is None else tf.convert_to_tensor(total) / plan.accumulate
                for total in sums
            ]
        )
        for total in used:
            total.assign(tf.zeros(total.shape, total.dtype))

    def without_result(_: Any) -> Any:
        return tf.constant(0)

    def across_replicas(strategy: Any) -> None:
        # A condition around communication between replicas must enclose all of them.
        tf.cond(
            tf.equal(tf.convert_to_tensor(count) % plan.accumulate, 0),
            lambda: without_result(strategy.extended.call_for_each_replica(make_update)),
            lambda: without_result(None),
        )

    return tf.distribute.get_replica_context().merge_call(across_replicas)


def sums_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's gradient sums, which differ between replicas."""
    return list(getattr(innermost(optimizer), _SUMS, ()))


def add_sums_keras3(optimizer: Any, variables: list[Any]) -> None:
    """Add gradient sums to an optimizer of Keras 3 when it is built."""
    from keras.src import backend  # noqa: PLC0415 - TensorFlow loads here

    def zeros(shape: Any, dtype: Any, name: str, **kind: str) -> Any:
        made = backend.Variable("zeros", shape, dtype, trainable=False, name=name, **kind)
        optimizer._track_variable(made)
        return made

    _add_sums(optimizer, variables, zeros)


def add_sums_tf_keras(optimizer: Any, variables: list[Any]) -> None:
    """Add gradient sums to an optimizer of tf-keras when it is built."""

    def zeros(shape: Any, dtype: Any, name: str, **kind: str) -> Any:
        kinds = {
            "aggregation": tf.VariableAggregation,
            "synchronization": tf.VariableSynchronization,
        }
        found = {key: getattr(kinds[key], value.upper()) for key, value in kind.items()}
        made = tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name, **found)
        optimizer._variables.append(made)
        return made

    if _SUMS not in optimizer.__dict__:
        _add_sums(optimizer, variables, zeros)


def _add_sums(optimizer: Any, variables: list[Any], zeros: Callable[..., Any]) -> None:
    optimizer.__dict__[_COUNT] = zeros((), "int64", "batches", aggregation="only_first_replica")
    optimizer.__dict__[_SUMS] = [
        # Each replica adds up its own gradients; reads from outside return their mean.
        zeros(
            found.shape,
            getattr(found, "true_dtype", found.dtype),
            "sum",
            aggregation="mean",
            synchronization="on_read",
        )
        for found in variables
    ]


def innermost(optimizer: Any) -> Any:
    """Return the optimizer inside loss-scaling wrappers."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def _index(optimizer: Any, variable: Any) -> int:
    if hasattr(optimizer, "_get_variable_index"):
        return int(optimizer._get_variable_index(variable))
    return int(optimizer._index_dict[optimizer._var_key(variable)])
