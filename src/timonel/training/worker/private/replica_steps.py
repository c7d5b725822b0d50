"""Steps of a Keras model on replicas that may have no rows.

In evaluation and prediction, a replica without rows computes one row of zeros, which does not
count: operations that reject an empty batch would fail on that replica only, in the middle of a
collective. `losses` makes the losses of these steps count all rows equally.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.impl import api
from tensorflow.python.framework import ops

from timonel.errors import SpecError
from timonel.training.worker.private import hidden_state, loss_terms, losses, metric_sums, row_means
from timonel.training.worker.private.attributes import replaced, wrap
from timonel.training.worker.private.loss_terms import present

logger = logging.getLogger(__name__)

Step = Callable[[Any], Any]


_DIVIDED = (
    "Replicas divide the first axis of each batch. If the batches have no rows, as pairs of arrays "
    "that are stacked, train with one worker and one device."
)
_metrics: weakref.WeakSet[Any] = weakref.WeakSet()
"""Metrics of the process: a step may update some that its model does not list."""


def install(keras: Any, warn: Callable[[str], object] = logger.warning) -> None:
    """Make ``fit``, ``evaluate`` and ``predict`` of a Keras run these steps. Idempotent."""
    losses.install(keras, warn)
    wrap(tf.GradientTape, "gradient", loss_terms.watching)
    wrap(keras.metrics.Metric, "__init__", _noting_metric)
    for name in ("fit", "evaluate", "predict"):
        wrap(keras.Model, name, _with_steps)
    if keras.__name__ == "keras":
        wrap(keras.Model, "predict_on_batch", _without_copies)
    else:
        from tf_keras.src.engine import training  # noqa: PLC0415 - only the Keras in use is loaded

        wrap(training, "reduce_per_replica", _averaging)


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


def _with_steps(original: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
    if getattr(model, "jit_compile", False):
        raise SpecError(
            "jit_compile=True does not work with several replicas: XLA cannot compile the sums "
            "over replicas",
            hint="remove it from compile(), or train with one worker and one device",
        )
    _run_single_steps(model)
    try:
        with _steps_of(model):
            return original(model, *args, **kwargs)
    except api.StagingError as error:
        raise _without_autograph(error) from None
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        if _is_own(model, "train_step"):
            error.add_note(_DIVIDED)
        raise


def _without_autograph(error: BaseException) -> BaseException:
    """Return our own error if AutoGraph, which tf-keras uses, wrapped one in the user's code."""
    inner = error.__context__
    while inner is not None and not isinstance(inner, SpecError):
        inner = inner.__context__
    return inner or error


def _run_single_steps(model: Any) -> None:
    """Run one step at a time: with several replicas, TensorFlow fails in Keras 3's loop."""
    steps = getattr(model, "steps_per_execution", None)
    if isinstance(steps, int) and steps > 1:
        row_means.warn(
            f"steps_per_execution={steps} does not work with several replicas: each step runs "
            "alone, so that an epoch has as many steps as you ask for. Remove it from compile()."
        )
        model.steps_per_execution = 1


def _without_copies(original: Callable[..., Any], model: Any, x: Any) -> Any:
    """Make ``predict_on_batch`` return each row once: every replica computes all rows."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    return tf.nest.map_structure(lambda value: value[: len(value) // replicas], original(model, x))


def _averaging(original: Callable[..., Any], values: Any, strategy: Any, reduction: str) -> Any:
    """Make tf-keras average the logs of replicas, as Keras 3 does: it adds up scaled losses."""
    if reduction != "auto":
        return original(values, strategy, reduction)
    several_workers = strategy.extended._in_multi_worker_mode()

    def mean(value: Any) -> Any:
        is_distributed = several_workers or isinstance(value, tf.distribute.DistributedValues)
        return strategy.reduce("MEAN", value, axis=None) if is_distributed else value

    return tf.nest.map_structure(mean, values)


def _steps_of(model: Any) -> contextlib.AbstractContextManager[None]:
    """Wrap a model's steps within the block; Keras also validates within ``fit``."""
    if hasattr(model.test_step, "is_timonels"):
        return contextlib.nullcontext()
    draws = hidden_state.generator_for_threads(model)

    def wrapped(run: Callable[[Any, Step, Any], Any], original: Step) -> Step:
        @functools.wraps(original)
        def step(data: Any) -> Any:
            draws()
            return run(model, original, data)

        step.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
        return step

    return replaced(
        model,
        train_step=wrapped(_train, model.train_step),
        test_step=wrapped(_test, model.test_step),
        predict_step=wrapped(_predict, model.predict_step),
    )


def _train(model: Any, original: Step, data: Any) -> Any:
    seen = loss_terms.Step(model)
    with row_means.weighted(_rows(data), repeats=True) as rows, seen.watched():
        undoes = _may_be_none(rows) and not _shares_variables()
        restore = _restoring(model, rows) if undoes else lambda: None
        checked = metric_sums.required(lambda: list(_metrics))
        with _results_of_all(model, "train_step", restore), checked:
            logs = _as_tensors(original(data))
    if seen.has_own_terms and (_is_own(model, "train_step") or _is_own(model, "compute_loss")):
        row_means.warn(_own_loss_warning(model))
    restore()
    return logs


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


def _test(model: Any, original: Step, data: Any) -> Any:
    rows = _rows(data)
    restore = _restoring(model, rows) if _may_be_none(rows) else lambda: None
    checked = metric_sums.required(lambda: list(_metrics))
    with row_means.weighted(rows), _results_of_all(model, "test_step", restore), checked:
        logs = _as_tensors(original(with_a_row(data)))
    restore()
    return logs


@contextlib.contextmanager
def _results_of_all(model: Any, step: str, restore: Callable[[], None]) -> Iterator[None]:
    """Let metrics return results over all replicas, in steps that the script defines."""
    # Such a step may log any of them, under other names, or values computed from them. Logs of
    # Keras' own steps are replaced at the end of an epoch, which costs no communication per step.
    # ``restore`` undoes updates of metrics by rows that do not count.
    if not any(_is_own(model, name) for name in (step, "compute_metrics", "get_metrics_result")):
        yield
        return
    graph = ops.get_default_graph()
    with replaced(present, before_result=restore, graph=graph):
        yield


def _noting_metric(original: Callable[..., Any], metric: Any, /, *args: Any, **kwargs: Any) -> None:
    """Wrap ``Metric.__init__``."""
    original(metric, *args, **kwargs)
    _metrics.add(metric)
    # tf-keras gives each metric a method of its own.
    wrap(metric if "result" in vars(metric) else type(metric), "result", _of_all)


def _of_all(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wrap ``Metric.result``."""
    metric: Any = getattr(original, "__self__", args and args[0])
    restore = present.before_result
    if restore is None:
        return original(*args, **kwargs)
    if ops.get_default_graph() is not present.graph:
        row_means.warn(
            f"The step reads the result of the metric {metric.name} inside a tf.function or a "
            "condition, where it counts the rows of one replica: read it outside."
        )
        return original(*args, **kwargs)
    restore()
    # Results may call each other.
    with replaced(present, before_result=None), _with_values_of_all(metric):
        return original(*args, **kwargs)


def _with_values_of_all(metric: Any) -> Any:
    """Let a metric read its variables' sums over replicas within the block."""
    if not hasattr(metric, "stateless_result"):
        return contextlib.nullcontext()  # results of tf-keras read them anyway
    from keras import StatelessScope  # noqa: PLC0415 - tf-keras may be in use

    with tf.__internal__.distribute.variable_sync_on_read_context():
        values = [tf.convert_to_tensor(variable.value) for variable in metric.variables]
    return StatelessScope(state_mapping=list(zip(metric.variables, values, strict=True)))


def _predict(_: Any, original: Step, data: Any) -> Any:
    rows = _rows(data)
    if not _may_be_none(rows):
        return original(data)
    return tf.nest.map_structure(
        lambda value: value[: tf.where(rows > 0, tf.shape(value)[0], 0)], original(with_a_row(data))
    )


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


def _restoring(model: Any, rows: Any) -> Callable[[], None]:
    """Return a function that undoes metric updates of replicas whose rows do not count."""
    others = (
        variable
        for metric in list(_metrics)
        for variable in metric.variables
        if isinstance(hidden_state.tensor_variable(variable), tf.distribute.DistributedValues)
    )
    variables = list({id(v): v for v in (*hidden_state.metric_variables(model), *others)}.values())
    if not tf.executing_eagerly():
        # The graph has weak references, and metrics of other models may end before it.
        graph = ops.get_default_graph()
        graph.timonel_variables = (*getattr(graph, "timonel_variables", ()), *variables)
    before = [_value(variable) for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(tf.where(rows > 0, _value(variable), value))

    return restore


def _is_own(model: Any, name: str) -> bool:
    """Whether the script overrides the step of that name."""
    return not hidden_state.is_kerases(getattr(model, name))


def _value(variable: Any) -> Any:
    return tf.identity(variable.value if not callable(variable.value) else variable.value())
