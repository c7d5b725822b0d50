"""Accumulate gradients of several batches in both Kerases' optimizers.

The sums are variables of the innermost optimizer, like its own, and each replica has its own
values: checkpoints store them per replica (`sums_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from timonel.training.worker.numerics.gradients import GradientPlan, Gradients

_SUMS = "_timonel_sums"
_COUNT = "_timonel_batches"


def with_accumulation(
    optimizer: Any,
    found: list[Any],
    variables: list[Any],
    plan: GradientPlan,
    update: Callable[[list[Any]], None],
) -> Any:
    """Call ``update`` with the gradients, or their mean when due."""
    if plan.accumulate == 1:
        return update(found)
    inner = innermost(optimizer)
    all_sums, indices = getattr(inner, _SUMS), [_index(inner, variable) for variable in variables]
    trained = [place for place, gradient in enumerate(found) if gradient is not None]

    def update_all(means: list[Any]) -> None:
        complete: list[Any] = [None] * len(found)
        for place, mean in zip(trained, means, strict=True):
            complete[place] = mean
        update(complete)

    return _accumulate(
        [all_sums[indices[place]] for place in trained],
        getattr(inner, _COUNT),
        [found[place] for place in trained],
        plan.accumulate,
        update_all,
    )


def sums_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's gradient sums, which differ between replicas."""
    return list(getattr(innermost(optimizer), _SUMS, ()))


def add_sums_keras3(optimizer: Any, variables: list[Any]) -> None:
    """Add gradient sums to an optimizer of Keras 3.

    Called when the optimizer is built.
    """
    from keras.src import backend  # noqa: PLC0415 - TensorFlow loads here

    def zeros(shape: Any, dtype: str, name: str, **kind: str) -> Any:
        made = backend.Variable("zeros", shape, dtype, trainable=False, name=name, **kind)
        optimizer._track_variable(made)
        return made

    count = zeros((), "int", "batches", aggregation="only_first_replica")
    sums = [
        # Each replica adds up its own gradients; reads from outside return their mean.
        zeros(found.shape, found.dtype, "sum", aggregation="mean", synchronization="on_read")
        for found in variables
    ]
    optimizer.__dict__[_COUNT], optimizer.__dict__[_SUMS] = count, sums


def add_sums_tf_keras(optimizer: Any, variables: list[Any]) -> None:
    """Add gradient sums to an optimizer of tf-keras when it is built."""
    if _SUMS in optimizer.__dict__:
        return
    count = tf.Variable(
        tf.constant(0, tf.int64),
        trainable=False,
        name="batches",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    sums = [
        tf.Variable(
            tf.zeros(found.shape, getattr(found, "true_dtype", found.dtype)),
            trainable=False,
            name="sum",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
        for found in variables
    ]
    optimizer._variables += [count, *sums]
    optimizer.__dict__[_COUNT], optimizer.__dict__[_SUMS] = count, sums


def innermost(optimizer: Any) -> Any:
    """Return the optimizer inside loss-scaling wrappers."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def _index(optimizer: Any, variable: Any) -> int:
    if hasattr(optimizer, "_get_variable_index"):
        return int(optimizer._get_variable_index(variable))
    return int(optimizer._index_dict[optimizer._var_key(variable)])


def _accumulate(
    sums: Sequence[Any],
    count: Any,
    gradients: Gradients,
    every: int,
    update: Callable[[Gradients], None],
) -> None:
    """Sum gradients on each replica; call ``update`` with the mean of every ``every`` batches.

    Args:
        sums: A variable for each gradient, with a value per replica.
        count: Variable that counts batches, equal on all replicas.
        gradients: Gradients of this batch.
        every: Batches per update.
        update: Called on each replica.
    """
    for total, gradient in zip(sums, gradients, strict=True):
        total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
    count.assign_add(1)

    def make_update() -> None:
        update([tf.convert_to_tensor(total) / every for total in sums])
        for total in sums:
            total.assign(tf.zeros(total.shape, total.dtype))

    def without_result(_: Any) -> Any:
        return tf.constant(0)

    def across_replicas(strategy: Any) -> None:
        # A condition around communication between replicas must enclose all of them.
        tf.cond(
            tf.equal(tf.convert_to_tensor(count) % every, 0),
            lambda: without_result(strategy.extended.call_for_each_replica(make_update)),
            lambda: without_result(None),
        )

    tf.distribute.get_replica_context().merge_call(across_replicas)
