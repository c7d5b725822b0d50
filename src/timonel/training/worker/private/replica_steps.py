"""Steps of a Keras model that weigh all rows equally.

Replicas may have different numbers of rows, or none. Both Kerases average the losses of replicas as
if all had the same number, and the step sees its part of that average: a script's ``train_step``
that tracks ``loss`` reports half of it with two replicas. Here, inside ``fit`` and ``evaluate``, a
loss has the value of the replica's rows, times their share of the batch if shares differ, and its
gradient is divided by the number of replicas. The share is that of a mean's divisor: the rows, the
entries that a mask leaves, or the weights (``mean_with_sample_weight``).

In evaluation and prediction, a replica without rows computes one row of zeros, which does not
count: operations that reject an empty batch would fail on that replica only, in the middle of a
collective.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from timonel.training.worker.private import hidden_state, loss_terms

logger = logging.getLogger(__name__)

Step = Callable[[Any], Any]

_present = threading.local()
"""State of the replica that this thread traces.

Each replica is traced in its own thread; ``weight`` is that of its rows.
"""


def missing_names() -> list[str]:
    """Return the required private names of both Kerases that are missing."""
    from keras.src.losses import loss as of_keras3  # noqa: PLC0415 - TensorFlow loads here
    from tf_keras.src.utils import losses_utils as of_tf_keras  # noqa: PLC0415

    wanted = [
        (of_keras3, "scale_loss_for_distribution"),
        (of_keras3, "unscale_loss_for_distribution"),
        (of_keras3, "reduce_values"),
        (of_keras3, "apply_mask"),
        (of_tf_keras, "scale_loss_for_distribution"),
        (of_tf_keras, "apply_valid_mask"),
    ]
    return [name for holder, name in wanted if not hasattr(holder, name)]


def install(keras: Any, warn: Callable[[str], object] = logger.warning) -> None:
    """Make ``fit``, ``evaluate`` and ``predict`` of a Keras run these steps. Idempotent.

    Args:
        keras: Keras module of the script.
        warn: Shows a line to the user; called once for each line.
    """
    if getattr(keras.Model.predict, "is_timonels", False):
        return
    _replace_scaling(_module_of_losses(keras))
    _replace_masking(_module_of_losses(keras))
    loss_terms.watch_tapes()
    warn = functools.cache(warn)  # every replica is traced, and a step several times
    for name in ("fit", "evaluate", "predict"):
        setattr(keras.Model, name, _with_steps(getattr(keras.Model, name), warn))
    if keras.__name__ == "keras":
        keras.Model.predict_on_batch = _without_copies(keras.Model.predict_on_batch)


def _module_of_losses(keras: Any) -> ModuleType:
    if keras.__name__ == "keras":
        from keras.src.losses import loss  # noqa: PLC0415 - TensorFlow loads here

        return loss  # type: ignore[no-any-return] # Keras has no types
    from tf_keras.src.utils import losses_utils  # noqa: PLC0415 - TensorFlow loads here

    return losses_utils  # type: ignore[no-any-return] # tf-keras has no types


def with_a_row(data: Any) -> Any:
    """Add a row of zeros to a batch that may be empty.

    Some layers reject empty batches.
    """
    tf = _tf()
    rows = _rows(data)
    if not _may_be_none(rows):
        return data

    def filled(value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or not value.shape.rank:
            return value
        shape = tf.concat([[1], tf.shape(value)[1:]], 0)
        found = tf.cond(
            tf.equal(rows, 0), lambda: tf.zeros(shape, value.dtype), lambda: tf.identity(value)
        )
        return tf.ensure_shape(found, [None, *value.shape[1:]])

    return tf.nest.map_structure(filled, data)


def _with_steps(original: Callable[..., Any], warn: Callable[[str], object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        _run_single_steps(model, warn)
        with _steps_of(model, warn):
            return original(model, *args, **kwargs)

    call.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    return call


def _run_single_steps(model: Any, warn: Callable[[str], object]) -> None:
    """Run one step at a time.

    With several replicas, TensorFlow fails in Keras 3's loop of steps.
    """
    steps = getattr(model, "steps_per_execution", None)
    if isinstance(steps, int) and steps > 1:
        warn(
            f"steps_per_execution={steps} does not work with several replicas: each step runs "
            "alone, with the same result. Remove it from compile()."
        )
        model.steps_per_execution = 1


def _without_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``predict_on_batch`` return each row once: every replica computes all rows."""

    @functools.wraps(original)
    def predict_on_batch(model: Any, x: Any) -> Any:
        replicas = model.distribute_strategy.num_replicas_in_sync
        return _tf().nest.map_structure(
            lambda value: value[: len(value) // replicas], original(model, x)
        )

    return predict_on_batch


@contextlib.contextmanager
def _steps_of(model: Any, warn: Callable[[str], object]) -> Iterator[None]:
    """Wrap a model's steps within the block; Keras also validates within ``fit``."""
    trained = functools.partial(_trained, warn=warn)
    makers: dict[str, Callable[[Any, Step], Step]] = {
        "train_step": trained,
        "test_step": _tested,
        "predict_step": _predicted,
    }
    if getattr(model.__dict__.get("test_step"), "is_timonels", False):
        yield
        return
    draws = hidden_state.generator_for_threads(model)
    before = {name: model.__dict__[name] for name in makers if name in model.__dict__}
    for name, make in makers.items():
        step = make(model, _with_generator(getattr(model, name), draws))
        step.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
        object.__setattr__(model, name, step)  # bypasses Keras' tracking of assigned attributes
    try:
        yield
    finally:
        for name in makers:
            del model.__dict__[name]
        model.__dict__.update(before)


def _with_generator(original: Step, draws: Callable[[], None]) -> Step:
    @functools.wraps(original)
    def step(data: Any) -> Any:
        draws()
        return original(data)

    return step


def _trained(model: Any, original: Step, *, warn: Callable[[str], object]) -> Step:
    @functools.wraps(original)
    def step(data: Any) -> Any:
        loss_terms.begin(model)
        with _weighted(_rows(data)):
            logs = _as_tensors(original(data))
        has_own_terms = loss_terms.end()
        if has_own_terms and (_is_own(model, "train_step") or _is_own(model, "compute_loss")):
            warn(_own_loss_warning(model))
        return logs

    return step


def _own_loss_warning(model: Any) -> str:
    replicas = _tf().distribute.get_strategy().num_replicas_in_sync
    return (
        f"The train_step of {type(model).__name__} computes a loss, or a part of it, without "
        f"Keras: a mean over the batch counts {replicas} times, as the gradients of {replicas} "
        f"replicas are added. Use a loss of keras.losses, or divide that mean by {replicas}."
    )


def _tested(model: Any, original: Step) -> Step:
    @functools.wraps(original)
    def step(data: Any) -> Any:
        rows = _rows(data)
        with _weighted(rows):
            if not _may_be_none(rows):
                return _as_tensors(original(data))
            restore = _restoring(model, rows)
            logs = _as_tensors(original(with_a_row(data)))
        restore()
        return logs

    return step


def _predicted(_: Any, original: Step) -> Step:
    @functools.wraps(original)
    def step(data: Any) -> Any:
        rows = _rows(data)
        if not _may_be_none(rows):
            return original(data)
        return _tf().nest.map_structure(
            lambda value: value[: _tf().where(rows > 0, _tf().shape(value)[0], 0)],
            original(with_a_row(data)),
        )

    return step


@contextlib.contextmanager
def _weighted(rows: Any) -> Iterator[None]:
    """Weigh losses by the replica's share of rows.

    1 if all replicas have equally many.
    """
    before = getattr(_present, "weight", None)
    _present.weight = None if rows is None else _weight(rows)
    try:
        yield
    finally:
        _present.weight = before


def _weight(rows: Any) -> Any:
    """Return a replica's share of the rows, times the number of replicas."""
    tf = _tf()
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
        return loss_terms.note_scaled(scaled)

    losses.scale_loss_for_distribution = scale  # type: ignore[attr-defined] # a module's function
    if not hasattr(losses, "unscale_loss_for_distribution"):  # tf-keras needs none
        return
    unscaled = losses.unscale_loss_for_distribution

    @functools.wraps(unscaled)
    def unscale(value: Any) -> Any:
        weight = getattr(_present, "weight", None)
        if weight is None:
            return unscaled(value)
        return _tf().math.divide_no_nan(value, _tf().cast(weight, value.dtype))

    losses.unscale_loss_for_distribution = unscale  # type: ignore[attr-defined] # likewise
    _replace_reduction(losses)


def _replace_reduction(losses: ModuleType) -> None:
    """Scale reductions that Keras 3 does not.

    Sums, and functions that return a mean.
    """
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
            tf = _tf()
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            return loss_terms.note_scaled(_scaled(loss, replicas * tf.cast(weight > 0, tf.float32)))
        if not values.shape.rank:
            return losses.scale_loss_for_distribution(loss)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return loss * _share(sample_weight, loss.dtype)
        return loss

    losses.reduce_values = reduce  # type: ignore[attr-defined] # likewise


def _replace_masking(losses: ModuleType) -> None:
    """Weigh a masked mean by its number of unmasked entries.

    Works for both Kerases.
    """
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
    tf = _tf()
    count = tf.stop_gradient(tf.reduce_sum(tf.cast(counts, tf.float32)))
    return tf.cast(tf.math.divide_no_nan(_weight(count), _present.weight), dtype)


def _scaled(value: Any, weight: Any) -> Any:
    """Scale a loss; its gradient is that of the replicas' mean."""
    tf = _tf()
    replicas = tf.distribute.get_strategy().num_replicas_in_sync

    @tf.custom_gradient  # type: ignore[untyped-decorator] # TensorFlow has no types
    def scale(loss: Any) -> Any:
        factor = tf.cast(weight, loss.dtype)
        return loss * factor, lambda upstream: upstream * factor / replicas

    return scale(tf.convert_to_tensor(value))


def _rows(data: Any) -> Any:
    """Return the row count of a replica's data.

    An int if static; None if the data have no rows.
    """
    tf = _tf()
    first = next((found for found in tf.nest.flatten(data) if found is not None), None)
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    if first is None or not first.shape.rank:
        return None
    return tf.shape(first)[0] if first.shape[0] is None else int(first.shape[0])


def _may_be_none(rows: Any) -> bool:
    return rows is not None and not (isinstance(rows, int) and rows)


def _as_tensors(logs: Any) -> Any:
    """Replace variables in logs, which some metrics return, by this replica's values."""
    return _tf().nest.map_structure(
        lambda value: _value(value) if hasattr(value, "assign") else value, logs
    )


def _restoring(model: Any, rows: Any) -> Callable[[], None]:
    """Return a function that undoes metric updates of empty replicas.

    A mean of losses that the script's own step tracks per batch counts the batch on each replica:
    its value without rows is 0, and is kept.
    """
    tf = _tf()
    before = [
        (metric, [(found, _value(found)) for found in metric.variables]) for metric in model.metrics
    ]

    def restore() -> None:
        for metric, variables in before:
            keeps = rows > 0
            if _is_own(model, "test_step") and type(metric).__name__ == "Mean":
                keeps = tf.logical_or(keeps, tf.equal(_value(variables[0][0]), variables[0][1]))
            for variable, value in variables:
                variable.assign(tf.where(keeps, _value(variable), value))

    return restore


def _is_own(model: Any, name: str) -> bool:
    """Whether the script overrides the step of that name."""
    return not getattr(type(model), name).__module__.startswith(("keras.", "tf_keras."))


def _value(variable: Any) -> Any:
    return _tf().identity(variable.value if not callable(variable.value) else variable.value())


def _tf() -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    return tf
