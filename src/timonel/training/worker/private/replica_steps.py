"""Steps of a Keras model on replicas that may have no rows.

In evaluation and prediction, a replica without rows computes one row of zeros, which does not
count: operations that reject an empty batch would fail on that replica only, in the middle of a
collective. `losses` makes the losses of these steps count all rows equally.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import hidden_state, loss_terms, losses

logger = logging.getLogger(__name__)

Step = Callable[[Any], Any]


def install(keras: Any, warn: Callable[[str], object] = logger.warning) -> None:
    """Make ``fit``, ``evaluate`` and ``predict`` of a Keras run these steps. Idempotent.

    Args:
        keras: Keras module of the script.
        warn: Shows a line to the user; called once for each line.
    """
    if getattr(keras.Model.predict, "is_timonels", False):
        return
    losses.install(keras)
    losses.install_functions(keras)
    loss_terms.watch_tapes()
    warn = functools.cache(warn)  # every replica is traced, and a step several times
    for name in ("fit", "evaluate", "predict"):
        setattr(keras.Model, name, _with_steps(getattr(keras.Model, name), warn))
    if keras.__name__ == "keras":
        keras.Model.predict_on_batch = _without_copies(keras.Model.predict_on_batch)


def with_a_row(data: Any) -> Any:
    """Add a row of zeros to a batch that may be empty, as some layers reject empty batches."""
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
        if getattr(model, "jit_compile", False):
            raise SpecError(
                "jit_compile=True does not work with several replicas: XLA cannot compile the sums "
                "over replicas",
                hint="remove it from compile(), or train with one worker and one device",
            )
        _run_single_steps(model, warn)
        with _steps_of(model, warn):
            return original(model, *args, **kwargs)

    call.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    return call


def _run_single_steps(model: Any, warn: Callable[[str], object]) -> None:
    """Run one step at a time: with several replicas, TensorFlow fails in Keras 3's loop."""
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
        return tf.nest.map_structure(
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
        loss_terms.begin_step(model)
        with losses.weighted(_rows(data), repeats=True) as rows:
            undoes = _may_be_none(rows) and not _shares_variables()
            restore = _restoring(model, "train_step", rows) if undoes else None
            logs = _as_tensors(original(data))
        has_own_terms = loss_terms.end_step()
        if has_own_terms and (_is_own(model, "train_step") or _is_own(model, "compute_loss")):
            warn(_own_loss_warning(model))
        if restore is not None:
            restore()
        return logs

    return step


def _shares_variables() -> bool:
    """Whether replicas share one copy of each variable, whose assignments are summed."""
    kind = tf.distribute.experimental.CentralStorageStrategy
    return isinstance(tf.distribute.get_strategy(), kind)


def _own_loss_warning(model: Any) -> str:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return (
        f"The train_step of {type(model).__name__} computes a loss, or a part of it, without "
        f"Keras: a mean over the batch counts {replicas} times, as the gradients of {replicas} "
        f"replicas are added. Use a loss of keras.losses, or divide that mean by {replicas}."
    )


def _tested(model: Any, original: Step) -> Step:
    @functools.wraps(original)
    def step(data: Any) -> Any:
        rows = _rows(data)
        loss_terms.begin_step()
        with losses.weighted(rows):
            if not _may_be_none(rows):
                return _as_tensors(original(data))
            restore = _restoring(model, "test_step", rows)
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
        return tf.nest.map_structure(
            lambda value: value[: tf.where(rows > 0, tf.shape(value)[0], 0)],
            original(with_a_row(data)),
        )

    return step


def _rows(data: Any) -> Any:
    """Return the row count of a replica's data: an int if static, None without rows."""
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
    return tf.nest.map_structure(
        lambda value: _value(value) if hasattr(value, "assign") else value, logs
    )


def _restoring(model: Any, name: str, rows: Any) -> Callable[[], None]:
    """Return a function that undoes metric updates of replicas whose rows do not count.

    A mean of losses that the script's own step tracks per batch counts the batch on each replica:
    its value without rows is 0, and is kept.
    """
    before = [
        (metric, [(found, _value(found)) for found in metric.variables]) for metric in model.metrics
    ]

    def restore() -> None:
        for metric, variables in before:
            keeps = rows > 0
            if _is_own(model, name) and type(metric).__name__ == "Mean":
                keeps = tf.logical_or(keeps, tf.equal(_value(variables[0][0]), variables[0][1]))
            for variable, value in variables:
                variable.assign(tf.where(keeps, _value(variable), value))

    return restore


def _is_own(model: Any, name: str) -> bool:
    """Whether the script overrides the step of that name."""
    return not getattr(type(model), name).__module__.startswith(("keras.", "tf_keras."))


def _value(variable: Any) -> Any:
    return tf.identity(variable.value if not callable(variable.value) else variable.value())
