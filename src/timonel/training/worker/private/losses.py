"""Scale the losses of replicas so that all rows count equally.

Replicas may have different numbers of rows, or none. Both Kerases average the losses of replicas as
if all had the same number, and a step sees its part of that average: a script's ``train_step`` that
tracks ``loss`` reports half of it with two replicas. Within `weighted`, a number of a replica is
one of two:

- a *mean over its rows*. Weighed by the replicas' shares of the rows, these give the value of the
  whole batch. `_row_mean` makes one from a mean or a sum; a loss or metric function of another kind
  is computed from the rows of all replicas, and other terms are rejected.
- *scaled*: such a mean times the share, with a gradient divided by the number of replicas, as
  replicas' gradients are added. Losses that a step sees are scaled.

The share is that of a mean's divisor: the rows, the entries that a mask leaves, or the weights
(``mean_with_sample_weight``).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import loss_terms
from timonel.training.worker.private.attributes import replaced, wrap
from timonel.training.worker.private.loss_terms import Kind


@dataclass(frozen=True)
class Layout:
    """The rows of a replica among those of all.

    Attributes:
        given: Its rows, static if known.
        rows: Its rows that count; another replica may count the others.
        counts: The rows of each replica that count; None if a worker knows only its own.
        position: Its position among the replicas.
        weight: Its share of all rows, times the number of replicas.
        ratio: Factor by which a sum over its rows counts more than their mean.
    """

    given: Any
    rows: Any
    counts: Any
    position: int
    weight: Any
    ratio: Any

    def gathered(self, value: Any) -> Any:
        """Return the rows of all replicas; gradients reach those of this one."""
        context = tf.distribute.get_replica_context()
        kind = tf.int32 if value.dtype == tf.bool else value.dtype
        # A row of the batch may have become several.
        counts = self.counts * (tf.shape(value)[0] // tf.maximum(self.given, 1))
        rows, total = counts[self.position], tf.reduce_sum(counts)
        begin = tf.reduce_sum(counts[: self.position])
        padding = [[begin, total - begin - rows], *([0, 0] for _ in value.shape[1:])]
        mine = tf.pad(tf.cast(value, kind)[:rows], padding)
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(mine))
        places = tf.reshape(tf.range(total), [-1, *(1 for _ in value.shape[1:])])
        whole = tf.where((places >= begin) & (places < begin + rows), mine, found)
        whole.set_shape([None, *value.shape[1:]])
        return tf.cast(whole, value.dtype)


class _Present(threading.local):
    """State of the replica that this thread traces: each has its own thread.

    ``layout`` is None outside `weighted` and `part_of`. ``depth`` is the number of losses and
    metric functions that call each other here. The outer one has ``name``, and ``whole`` computes
    it for the whole batch; ``mixes`` tells whether its values of rows depend on other rows.
    ``caught`` gets what a metric function returns.
    """

    layout: Any = None
    depth = 0
    name = ""
    whole: Callable[[], Any]
    mixes: Callable[[], bool] = staticmethod(lambda: False)
    caught: list[Any] | None = None


_present = _Present()

_ONE_NUMBER = "returns one number per batch"


def repetitions(part: int, total: int) -> int:
    """Return how often a part repeats the rows of a batch with fewer rows than parts.

    Each part then has the whole batch, of which only that of the first part counts. Parts differ
    by more rows than those of any other batch, which tells `weighted` that they repeat.
    """
    return 1 if part == 0 else total + 1


def install(keras: Any) -> None:
    """Replace the scaling of losses of a Keras permanently, with effect within `weighted`."""
    losses = _module_of_losses(keras)
    wrap(losses, "scale_loss_for_distribution", _scaling)
    if keras.__name__ == "keras":
        wrap(losses, "unscale_loss_for_distribution", _unscaling)
    else:
        wrap(losses, "apply_valid_mask", _masking)
        wrap(_container_of_losses(), "_get_loss_object", _scaling_sums)
    install_functions(keras)


def install_functions(keras: Any) -> None:
    """Divide functions of a whole batch and ``add_loss``, within `weighted` and `part_of`."""
    losses = _module_of_losses(keras)
    wrap(keras.losses.Loss, "__call__", _calling_loss)
    wrap(keras.metrics.Mean, "update_state", _counting)
    wrap(keras.metrics.MeanMetricWrapper, "update_state", _calling_metric)
    if keras.__name__ == "keras":
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer  # noqa: PLC0415

        wrap(losses, "reduce_weighted_values", functools.partial(_reducing, losses=losses))
        wrap(TensorFlowTrainer, "_aggregate_additional_loss", _adding_keras3)
    else:
        wrap(losses, "compute_weighted_loss", _reducing)
        wrap(_container_of_losses(), "__call__", _adding_tf_keras)


def _module_of_losses(keras: Any) -> ModuleType:
    names = {"keras": "keras.src.losses.loss", "tf_keras": "tf_keras.src.utils.losses_utils"}
    return importlib.import_module(names[keras.__name__])


def _container_of_losses() -> Any:
    return importlib.import_module("tf_keras.src.engine.compile_utils").LossesContainer


@contextlib.contextmanager
def weighted(rows: Any, *, repeats: bool = False) -> Iterator[Any]:
    """Weigh losses by the replica's share of rows: 1 if all replicas have equally many.

    Args:
        rows: Number of its rows; None if its data have none.
        repeats: It may have rows that another replica counts, see `repetitions`.

    Yields:
        The number of its rows that count; static if all do.
    """
    layout = None if rows is None else _layout(rows, repeats=repeats)
    with replaced(_present, layout=layout):
        yield layout and layout.rows


def part_of(share: Any, rows: Any) -> contextlib.AbstractContextManager[None]:
    """Count values of a part of a batch by its share of the rows; gradients are averaged so."""
    layout = Layout(rows, rows, None, 0, share, tf.math.reciprocal_no_nan(share))
    return replaced(_present, layout=layout)


def _layout(rows: Any, *, repeats: bool) -> Layout:
    context = tf.distribute.get_replica_context()
    replicas, position = context.num_replicas_in_sync, context.replica_id_in_sync_group
    mine = tf.one_hot(position, replicas, dtype=tf.int32) * tf.cast(rows, tf.int32)
    counts = context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
    counted = rows
    # Parts of a repeated batch have fewer rows than the square.
    if repeats and not (isinstance(rows, int) and rows >= replicas * replicas):
        pattern = [repetitions(part, replicas) for part in range(replicas)]
        is_repeated = (counts[0] < replicas) & tf.reduce_all(counts == counts[0] * pattern)
        counts = tf.where(is_repeated, counts * tf.one_hot(0, replicas, dtype=tf.int32), counts)
        counted = counts[position]
    own, total = tf.cast(counts[position], tf.float32), tf.cast(tf.reduce_sum(counts), tf.float32)
    weight = tf.math.divide_no_nan(own * replicas, total)
    ratio = tf.math.divide_no_nan(total, own)
    return Layout(rows, counted, counts, position, weight, ratio)


def _replica() -> Layout | None:
    """Return the layout if this thread traces a replica within `weighted`."""
    layout = _present.layout
    return None if layout is None or layout.counts is None else layout


def _scaling(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale(value: Any) -> Any:
        layout = _replica()
        if layout is None:
            return loss_terms.noted(original(value), Kind.SCALED)
        if _present.depth > 1:  # a part of another loss, which is scaled
            return value
        scaled = _times(tf.convert_to_tensor(value), layout.weight)
        return loss_terms.noted(_with_gradient(scaled, 1 / _replicas()), Kind.SCALED)

    return scale


def _unscaling(original: Callable[..., Any]) -> Callable[..., Any]:
    def unscale(value: Any) -> Any:
        return original(value) if _replica() is None else _unscaled(value)

    return unscale


def _unscaled(value: Any) -> Any:
    mean = tf.math.divide_no_nan(value, tf.cast(_present.layout.weight, value.dtype))
    return loss_terms.noted(_with_gradient(mean, _replicas()), Kind.MEAN)


def _masking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap tf-keras' weights of a masked mean."""

    def apply(values: Any, weights: Any, mask: Any, reduction: str) -> Any:
        weights = original(values, weights, mask, reduction)
        if _replica() is None or mask is None or reduction != "sum_over_batch_size":
            return weights
        return _times(weights, _share(mask))

    return apply


def _share(counts: Any) -> Any:
    """Return a replica's weight by ``counts``, relative to its weight by rows."""
    context, weight = tf.distribute.get_replica_context(), _present.layout.weight
    count = tf.stop_gradient(tf.reduce_sum(tf.cast(counts, tf.float32)))
    count *= tf.cast(weight > 0, tf.float32)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
    own = tf.math.divide_no_nan(count * context.num_replicas_in_sync, total)
    return tf.math.divide_no_nan(own, weight)


def _scaling_sums(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make tf-keras scale sums, too: `_reducing` returns them as means over rows."""

    def get(container: Any, loss: Any) -> Any:
        found = original(container, loss)
        if found is not None and found.reduction == "sum":
            found = copy.copy(found)
            found.reduction, found._get_reduction = "sum_over_batch_size", lambda: "sum"
        return found

    return get


@contextlib.contextmanager
def _calling(
    name: str, function: Callable[..., Any], *given: Any, own: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Note the loss or metric function that is called within the block.

    Args:
        name: Its name.
        function: Computes it.
        given: Arguments of ``function``.
        own: Function of the script or of Keras that computes its values.
    """
    layout, depth = _present.layout, _present.depth + 1

    @functools.cache
    def mixes() -> bool:
        if own is None or _is_kerases(own):
            return False
        with replaced(_present, depth=depth + 1):
            return loss_terms.mixes_rows(function, given)

    def whole() -> Any:
        if layout is None or layout.counts is None:
            raise _cannot_divide(name, "return a value per row, computed from this row alone")
        with replaced(_present, depth=depth + 1):
            found = function(*tf.nest.map_structure(layout.gathered, given))
        # Scaling weighs the gradient as one of this replica's mean.
        return _with_gradient(found, layout.ratio)

    with replaced(_present, depth=depth, name=name, whole=whole, mixes=mixes):
        yield


def _is_kerases(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith(("keras.", "tf_keras."))


def _calling_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not getattr(loss, "_allow_sum_over_batch_size", True):
            return original(loss, y_true, y_pred, sample_weight)  # tf-keras: the script scales it
        own = getattr(loss, "fn", None) if _is_kerases(loss.call) else loss.call
        with _calling(loss.name, loss.call, y_true, y_pred, own=own):
            return original(loss, y_true, y_pred, sample_weight)

    return call


def _calling_metric(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        def value_of(*given: Any) -> Any:
            with replaced(_present, caught=[]):
                original(metric, *given)
                (value,) = _present.caught  # type: ignore[misc] # set above
            return value

        with _calling(metric.name, value_of, y_true, y_pred, own=metric._fn):
            return original(metric, y_true, y_pred, sample_weight)

    return update


def _reducing(original: Callable[..., Any], losses: Any = None) -> Callable[..., Any]:
    """Wrap the reduction of a loss's values.

    Args:
        original: Of either Keras.
        losses: Module of Keras 3, which scales means here; tf-keras scales them later.
    """

    def scale(value: Any) -> Any:
        return losses.scale_loss_for_distribution(value) if losses else value

    def reduce(values: Any, sample_weight: Any = None, **options: Any) -> Any:
        layout, mask = _present.layout, options.get("mask")
        if layout is None or _present.depth != 1:
            return original(values, sample_weight, **options)
        if not values.shape.rank or _present.mixes():
            value = _value_of_function(values, sample_weight, mask, options["reduction"])
            return scale(original(value, None, **{**options, "mask": None} if losses else options))
        loss = original(values, sample_weight, **options)
        if layout.counts is None or options["reduction"] in {None, "none"}:
            return loss
        if options["reduction"] == "sum":
            return scale(_times(loss, layout.ratio))
        if options["reduction"] == "mean_with_sample_weight":
            mask = losses.apply_mask(sample_weight, mask, loss.dtype, options["reduction"])
        return loss if mask is None else loss_terms.noted(_times(loss, _share(mask)), Kind.SCALED)

    return reduce


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Mean.update_state``: one number for a batch counts once, not once per replica."""

    def update(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        if _present.caught is not None:
            _present.caught.append(values)
            return None
        layout = _present.layout
        is_number = layout is not None and getattr(values, "shape", None) == ()
        mixes = layout is not None and _present.depth and not is_number and _present.mixes()
        if not (is_number or mixes) or (sample_weight is not None and not _present.depth):
            return original(metric, values, sample_weight)
        if _present.depth:
            found = _value_of_function(values, sample_weight)
        else:
            found = _row_mean(values, lambda: values)
        return original(metric, found, layout.rows if mixes else layout.weight)

    return update


def _adding_keras3(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the scaling of ``add_loss`` and regularizers."""

    def aggregate(model: Any, loss: Any) -> Any:
        return original(model, loss if _present.layout is None else _term(tf.reduce_sum(loss)))

    return aggregate


def _adding_tf_keras(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the sum of the losses of ``compile``, ``add_loss`` and regularizers."""

    def call(container: Any, *given: Any, regularization_losses: Any = None, **weights: Any) -> Any:
        if _present.layout is not None:
            regularization_losses = [_term(loss) for loss in regularization_losses or ()]
        return original(container, *given, regularization_losses=regularization_losses, **weights)

    return call


def _term(value: Any) -> Any:
    """Return a term of ``add_loss`` as a mean over rows."""

    def reject() -> Any:
        raise _cannot_divide("a term of add_loss()", "add the mean over the rows, each in a call")

    # tf-keras reports the mean of a vector, but trains its sum.
    return reject() if value.shape.rank else _row_mean(value, reject)


def _value_of_function(
    value: Any, weights: Any, mask: Any = None, reduction: str | None = "mean"
) -> Any:
    """Return what a function returns for a batch, one number or values that mix rows, as a mean."""
    does = "computes values of rows from other rows" if value.shape.rank else _ONE_NUMBER
    if weights is not None or mask is not None:
        raise SpecError(
            f"{_present.name} {does}, which sample weights, class weights "
            "and masks cannot weigh on several replicas",
            hint="return a value per row, computed from this row alone, or train with one worker "
            "and one device",
        )
    if not value.shape.rank:
        return _row_mean(value, _present.whole, _present.mixes)
    if reduction in {None, "none"}:
        raise _cannot_divide(_present.name, "use reduction='sum_over_batch_size'")
    reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean
    return loss_terms.noted(reduce(_present.whole()), Kind.MEAN)


def _row_mean(
    value: Any, otherwise: Callable[[], Any], mixes: Callable[[], bool] = lambda: False
) -> Any:
    """Return a number as a mean over the replica's rows.

    Args:
        value: A number of this replica.
        otherwise: Called for a number that is neither a mean, nor a sum, nor a scaled loss.
        mixes: Whether it is a mean or sum of values that depend on several rows.
    """
    kind = loss_terms.kind_of(value, _present.layout.given)
    if kind in {Kind.MEAN, Kind.SUM} and mixes():
        kind = Kind.OTHER
    if kind is Kind.SCALED:
        return _unscaled(value)
    if kind is Kind.SUM:
        value = _times(value, _present.layout.ratio)
    elif kind is Kind.OTHER:
        value = otherwise()
    return loss_terms.noted(value, Kind.MEAN)


def _cannot_divide(what: str, cure: str) -> SpecError:
    return SpecError(
        f"{what} is neither a mean nor a sum over the rows of a batch, so that parts of a batch on "
        "several replicas cannot give its value",
        hint=f"{cure}, or train with one worker and one device",
    )


def _replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _times(value: Any, factor: Any) -> Any:
    return value * tf.cast(factor, value.dtype)


def _with_gradient(value: Any, factor: Any) -> Any:
    """Return a value whose gradient is multiplied."""

    @tf.custom_gradient  # type: ignore[untyped-decorator] # TensorFlow has no types
    def same(given: Any) -> Any:
        return tf.identity(given), lambda upstream: _times(upstream, factor)

    return same(value)
