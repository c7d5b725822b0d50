"""Scale the losses of replicas so that all rows count equally.

Replicas may have different numbers of rows, or none. Both Kerases average the losses of replicas as
if all had the same number, and a step sees its part of that average: a script's ``train_step`` that
tracks ``loss`` reports half of it with two replicas. Within `weighted`, a loss has the value of the
replica's rows, times their share of the batch if shares differ, and its gradient is divided by the
number of replicas. The share is that of a mean's divisor: the rows, the entries that a mask
leaves, or the weights (``mean_with_sample_weight``).

`begin_step` and `end_step` find loss terms of a ``train_step`` that did not pass through Keras and
so are not scaled.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

_present = threading.local()
"""State of the replica that this thread traces: each has its own thread.

``weight`` is that of its rows; the others are of `begin_step`.
"""


def missing_names() -> list[str]:
    """Return the required private names of both Kerases that are missing."""
    from keras.src.losses import loss as of_keras3  # noqa: PLC0415 - TensorFlow loads here
    from tf_keras.src.utils import losses_utils as of_tf_keras  # noqa: PLC0415

    required = [
        (of_keras3, "scale_loss_for_distribution"),
        (of_keras3, "unscale_loss_for_distribution"),
        (of_keras3, "reduce_values"),
        (of_keras3, "apply_mask"),
        (of_tf_keras, "scale_loss_for_distribution"),
        (of_tf_keras, "apply_valid_mask"),
    ]
    return [name for holder, name in required if not hasattr(holder, name)]


def install(keras: Any) -> None:
    """Replace the scaling of losses of a Keras permanently, with effect within `weighted`."""
    losses = _module_of_losses(keras)
    _replace_scaling(losses)
    _replace_masking(losses)


def _module_of_losses(keras: Any) -> ModuleType:
    if keras.__name__ == "keras":
        from keras.src.losses import loss  # noqa: PLC0415 - TensorFlow loads here

        return loss  # type: ignore[no-any-return] # Keras has no types
    from tf_keras.src.utils import losses_utils  # noqa: PLC0415 - TensorFlow loads here

    return losses_utils  # type: ignore[no-any-return] # tf-keras has no types


@contextlib.contextmanager
def weighted(rows: Any) -> Iterator[None]:
    """Weigh losses by the replica's share of rows: 1 if all replicas have equally many."""
    before = getattr(_present, "weight", None)
    _present.weight = None if rows is None else _weight(rows)
    try:
        yield
    finally:
        _present.weight = before


def _weight(rows: Any) -> Any:
    """Return a replica's share of the rows, times the number of replicas."""
    context = tf.distribute.get_replica_context()
    mine = tf.cast(rows, tf.float32)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
    return tf.math.divide_no_nan(mine * context.num_replicas_in_sync, total)


def _replace_scaling(losses: ModuleType) -> None:
    original = losses.scale_loss_for_distribution

    @functools.wraps(original)
    def scale(value: Any) -> Any:
        weight = getattr(_present, "weight", None)
        scaled = original(value) if weight is None else _scaled(value, weight)
        return note_scaled(scaled)

    losses.scale_loss_for_distribution = scale  # type: ignore[attr-defined] # a module's function
    if not hasattr(losses, "unscale_loss_for_distribution"):  # tf-keras needs none
        return
    unscaled = losses.unscale_loss_for_distribution

    @functools.wraps(unscaled)
    def unscale(value: Any) -> Any:
        weight = getattr(_present, "weight", None)
        if weight is None:
            return unscaled(value)
        return tf.math.divide_no_nan(value, tf.cast(weight, value.dtype))

    losses.unscale_loss_for_distribution = unscale  # type: ignore[attr-defined] # likewise
    _replace_reduction(losses)


def _replace_reduction(losses: ModuleType) -> None:
    """Scale reductions that Keras 3 does not: sums, and functions that return a mean."""
    original = losses.reduce_values

    @functools.wraps(original)
    def reduce(
        values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size"
    ) -> Any:
        loss = original(values, sample_weight, reduction)
        weight = getattr(_present, "weight", None)
        if weight is None or reduction in {None, "none"}:
            return loss
        if reduction == "sum":
            # The goal is the sum over all replicas; the reported value is the replicas' mean.
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            return note_scaled(_scaled(loss, replicas * tf.cast(weight > 0, tf.float32)))
        if not values.shape.rank:
            return losses.scale_loss_for_distribution(loss)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return loss * _share(sample_weight, loss.dtype)
        return loss

    losses.reduce_values = reduce  # type: ignore[attr-defined] # likewise


def _replace_masking(losses: ModuleType) -> None:
    """Weigh a masked mean of either Keras by its number of unmasked entries."""
    name = "apply_mask" if hasattr(losses, "reduce_values") else "apply_valid_mask"
    original = getattr(losses, name)
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def apply(*args: Any, **kwargs: Any) -> Any:
        weights = original(*args, **kwargs)
        given = parameters.bind(*args, **kwargs).arguments
        is_mean = given["reduction"] in {"mean", "sum_over_batch_size", "auto"}
        if getattr(_present, "weight", None) is None or given["mask"] is None or not is_mean:
            return weights
        return weights * _share(given["mask"], weights.dtype)

    setattr(losses, name, apply)


def _share(counts: Any, dtype: Any) -> Any:
    """Return a replica's weight by ``counts``, relative to its weight by rows."""
    count = tf.stop_gradient(tf.reduce_sum(tf.cast(counts, tf.float32)))
    return tf.cast(tf.math.divide_no_nan(_weight(count), _present.weight), dtype)


def _scaled(value: Any, weight: Any) -> Any:
    """Scale a loss; its gradient is that of the replicas' mean."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync

    @tf.custom_gradient  # type: ignore[untyped-decorator] # TensorFlow has no types
    def scale(loss: Any) -> Any:
        factor = tf.cast(weight, loss.dtype)
        return loss * factor, lambda upstream: upstream * factor / replicas

    return scale(tf.convert_to_tensor(value))


def begin_step(model: Any) -> None:
    """Start watching the ``train_step`` of a model that this thread traces."""
    _present.model, _present.scaled = model, set()
    _present.is_scaled, _present.is_mixed = False, False


def end_step() -> bool:
    """Stop watching; return whether the step took gradients of an unscaled term.

    Terms in functions that the step calls are invisible, and count as scaled.
    """
    _present.model = None
    return not _present.is_scaled or _present.is_mixed


def note_scaled(value: Any) -> Any:
    """Record a scaled loss, and return it."""
    if getattr(_present, "model", None) is not None:
        _present.is_scaled = True
        if hasattr(value, "graph"):
            _present.scaled.add((id(value.graph), value.name))
    return value


def watch_tapes() -> None:
    """Patch ``GradientTape.gradient`` permanently to inspect its loss."""
    tf.GradientTape.gradient = _looking(tf.GradientTape.gradient)


def _looking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gradient(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        model = getattr(_present, "model", None)
        if model is not None and hasattr(target, "graph"):
            _present.is_mixed |= _reaches_variables(target, model)
        return original(self, target, *args, **kwargs)

    return gradient


def _reaches_variables(target: Any, model: Any) -> bool:
    """Whether a loss depends on a trained variable, other than through a scaled loss."""
    trained = {target.graph.capture(_handle(found)).name for found in model.trainable_variables}
    waiting, seen = [target], set()
    while waiting:
        value = waiting.pop()
        if value.name in seen or (id(value.graph), value.name) in _present.scaled:
            continue
        if value.name in trained:
            return True
        seen.add(value.name)
        if not value.op.type.endswith("PartitionedCall"):
            waiting += value.op.inputs
    return False


def _handle(variable: Any) -> Any:
    """Return the resource handle of either Keras' variable on this replica."""
    return variable.handle if hasattr(variable, "handle") else variable.value.handle
