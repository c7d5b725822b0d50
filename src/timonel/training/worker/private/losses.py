"""Scale the values of losses and metrics of replicas so that all rows count equally."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import layer_losses, loss_terms, row_means
from timonel.training.worker.private.attributes import replaced, wrap
from timonel.training.worker.private.hidden_state import is_kerases
from timonel.training.worker.private.loss_terms import TermKind, present
from timonel.training.worker.private.row_means import (
    batch_of,
    cannot_divide,
    replica,
    row_mean,
    scaled,
    times,
    unscaled,
    warn,
    warn_of_part,
    with_gradient,
)

_ONE_NUMBER = "returns one number per batch"
_OF_PAIRS = frozenset({"circle"})
"""Functions of Keras that compute values of rows from other rows."""


def install(keras: Any, warn: row_means.Warn) -> None:
    """Replace the scaling of losses permanently, with effect within `row_means.weighted`."""
    losses = _module_of_losses(keras)
    wrap(losses, "scale_loss_for_distribution", _scaling)
    if keras.__name__ == "keras":
        wrap(losses, "unscale_loss_for_distribution", _unscaling)
    else:
        wrap(losses, "apply_valid_mask", _masking)
        container = importlib.import_module("tf_keras.src.engine.compile_utils").LossesContainer
        wrap(container, "_get_loss_object", _scaling_sums)
    install_functions(keras, warn)


def install_functions(keras: Any, warn: row_means.Warn) -> None:
    """Divide functions of a whole batch and ``add_loss``, also within `row_means.part_of`."""
    row_means.show_with(warn)
    losses = _module_of_losses(keras)
    wrap(keras.losses.Loss, "__call__", _calling_loss)
    wrap(keras.metrics.Mean, "update_state", _counting)
    wrap(keras.metrics.MeanMetricWrapper, "update_state", _calling_metric)
    if keras.__name__ == "keras":
        wrap(losses, "reduce_weighted_values", functools.partial(_reducing, losses))
    else:
        wrap(losses, "compute_weighted_loss", functools.partial(_reducing, None))
    layer_losses.install(keras)


def _module_of_losses(keras: Any) -> ModuleType:
    names = {"keras": "keras.src.losses.loss", "tf_keras": "tf_keras.src.utils.losses_utils"}
    return importlib.import_module(names[keras.__name__])


def _scaling(original: Callable[..., Any], value: Any) -> Any:
    if replica() is None:
        return loss_terms.noted(original(value), TermKind.SCALED)
    if present.depth > 1:  # a part of another loss, which is scaled
        return value
    return scaled(value)


def _unscaling(original: Callable[..., Any], value: Any) -> Any:
    return original(value) if replica() is None else unscaled(value)


def _masking(
    original: Callable[..., Any], values: Any, weights: Any, mask: Any, reduction: str
) -> Any:
    """Wrap tf-keras' weights of a masked mean."""
    weights = original(values, weights, mask, reduction)
    if present.layout is None or mask is None or reduction != "sum_over_batch_size":
        return weights
    return times(weights, _share(mask))


def _share(counts: Any) -> Any:
    """Return a replica's weight by ``counts``, relative to its weight by rows."""
    if replica() is None:
        warn_of_part(present.name)
        return 1.0
    context, weight = tf.distribute.get_replica_context(), present.layout.weight
    count = tf.stop_gradient(tf.reduce_sum(tf.cast(counts, tf.float32)))
    count *= tf.cast(weight > 0, tf.float32)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
    own = tf.math.divide_no_nan(count * context.num_replicas_in_sync, total)
    return tf.math.divide_no_nan(own, weight)


def _scaling_sums(original: Callable[..., Any], container: Any, loss: Any) -> Any:
    """Make tf-keras scale sums, too: `_reducing` returns them as means over rows."""
    found = original(container, loss)
    if found is not None and found.reduction == "sum":
        found = copy.copy(found)
        found.reduction, found._get_reduction = "sum_over_batch_size", lambda: "sum"
    return found


@contextlib.contextmanager
def _calling(
    name: str, function: Callable[..., Any], *given: Any, own: Any = None
) -> Iterator[None]:
    """Note a called loss or metric: ``function`` computes it from ``given``, ``own`` its values."""
    layout, depth = present.layout, present.depth + 1

    def whole() -> Any:
        if layout is None or layout.counts is None:
            raise cannot_divide(name, "return a value per row, computed from this row alone")
        with replaced(present, depth=depth + 1):
            found = function(*tf.nest.map_structure(layout.gathered, given))
        # Scaling weighs the gradient as one of this replica's mean.
        return with_gradient(found, layout.ratio)

    is_independent = is_kerases(own) and own.__name__ not in _OF_PAIRS
    batch = layout and batch_of(name, given, is_independent=is_independent)
    with replaced(present, depth=depth, name=name, whole=whole, batch=batch):
        yield


def _calling_loss(
    original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    if not getattr(loss, "_allow_sum_over_batch_size", True):
        return original(loss, y_true, y_pred, sample_weight)  # tf-keras: the script scales it
    own = getattr(loss, "fn", None) if is_kerases(loss.call) else loss.call
    with _calling(loss.name, loss.call, y_true, y_pred, own=own):
        return original(loss, y_true, y_pred, sample_weight)


def _calling_metric(
    original: Callable[..., Any], metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    def value_of(*given: Any) -> Any:
        with replaced(present, caught=[]):
            original(metric, *given)
            (value,) = present.caught  # type: ignore[misc] # set above
        return value

    with _calling(metric.name, value_of, y_true, y_pred, own=metric._fn):
        return original(metric, y_true, y_pred, sample_weight)


def _reducing(
    losses: Any, original: Any, values: Any, sample_weight: Any = None, **options: Any
) -> Any:
    """Wrap the reduction of a loss's values; Keras 3 scales means in ``losses``, tf-keras later."""

    def scale(value: Any) -> Any:
        return losses.scale_loss_for_distribution(value) if losses else value

    layout, mask = present.layout, options.get("mask")
    if layout is None or present.depth != 1:
        return original(values, sample_weight, **options)
    if not values.shape.rank or present.batch.mixes(values):
        value = _value_of_function(values, sample_weight, mask, options["reduction"])
        return scale(original(value, None, **{**options, "mask": None} if losses else options))
    loss, reduction = original(values, sample_weight, **options), options["reduction"]
    if reduction in {None, "none"}:
        return loss
    if reduction == "sum":
        return scale(loss_terms.noted(times(loss, layout.ratio), TermKind.MEAN))
    if reduction == "mean_with_sample_weight":
        mask = losses.apply_mask(sample_weight, mask, loss.dtype, reduction)
    kind = TermKind.MEAN if layout.counts is None else TermKind.SCALED
    return loss if mask is None else loss_terms.noted(times(loss, _share(mask)), kind)


def _counting(
    original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Wrap ``Mean.update_state``: one number for a batch counts once, not once per replica."""
    if present.caught is not None:
        present.caught.append(values)
        return None
    layout, depth = present.layout, present.depth
    if layout is None or (sample_weight is not None and not depth):
        return original(metric, values, sample_weight)
    is_number = getattr(values, "shape", None) == ()
    if not is_number and not (depth and present.batch.mixes(values)):
        return original(metric, values, sample_weight)
    found = _value_of_function(values, sample_weight) if depth else _own_mean(metric, values)
    return original(metric, found, layout.weight if is_number else layout.rows)


def _own_mean(metric: Any, value: Any) -> Any:
    """Return a number with which the script updates a metric, as a mean over rows."""
    what = f"The metric {metric.name}"

    def of_replicas() -> Any:
        warn(
            f"{what} gets a number that is neither a mean nor a sum over the rows of a batch: it "
            "averages those of replicas, each computed from its own rows."
        )
        return value

    return row_mean(value, of_replicas, batch_of(what, present.outputs))


def _value_of_function(
    value: Any, weights: Any, mask: Any = None, reduction: str | None = "mean"
) -> Any:
    """Return what a function returns for a batch, one number or values that mix rows, as a mean."""
    does = "computes values of rows from other rows" if value.shape.rank else _ONE_NUMBER
    if weights is not None or mask is not None:
        raise SpecError(
            f"{present.name} {does}, which sample weights, class weights "
            "and masks cannot weigh on several replicas",
            hint="return a value per row, computed from this row alone, or train with one worker "
            "and one device",
        )
    if not value.shape.rank:
        return row_mean(value, present.whole, present.batch)
    if reduction in {None, "none"}:
        raise cannot_divide(present.name, "use reduction='sum_over_batch_size'")
    reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean
    return loss_terms.noted(reduce(present.whole()), TermKind.MEAN)
