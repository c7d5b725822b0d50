"""Scale the losses of replicas so that all rows count equally.

Replicas may have different numbers of rows, or none. Both Kerases average the losses of replicas as
if all had the same number, and a step sees its part of that average: a script's ``train_step`` that
tracks ``loss`` reports half of it with two replicas. Within `weighted`, a loss has the value of the
replica's rows, times their share of the batch if shares differ, and its gradient is divided by the
number of replicas. The share is that of a mean's divisor: the rows, the entries that a mask
leaves, or the weights (``mean_with_sample_weight``).

A loss function that returns one number is computed from the rows of all replicas, unless it is
known to be their mean, and so is a metric function. Terms of ``add_loss`` count by their kind
(`loss_terms`); what cannot be divided is rejected.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import loss_terms
from timonel.training.worker.private.loss_terms import Kind

_present = threading.local()
"""State of the replica that this thread traces: each has its own thread.

``layout`` is that of its rows; ``function`` and ``depth`` are those of the loss or metric function
that is called.
"""


@dataclass(frozen=True)
class Layout:
    """The rows of a replica among those of all.

    Attributes:
        given: Its rows, static if known.
        counts: The rows of each replica that count; None if a worker knows only its own.
        position: Its position among the replicas.
        weight: Its share of all rows, times the number of replicas.
        ratio: Factor by which a sum over its rows counts more than their mean.
        repeats: It may have rows that another replica counts.
    """

    given: Any
    counts: Any
    position: int
    weight: Any
    ratio: Any
    repeats: bool = False

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


def repetitions(part: int, total: int) -> int:
    """Return how often a part repeats the rows of a batch with fewer rows than parts.

    Each part then has the whole batch, of which only that of the first part counts. Parts differ
    by more rows than those of any other batch, which tells `weighted` that they repeat.
    """
    return 1 if part == 0 else total + 1


def missing_names() -> list[str]:
    """Return the required private names of both Kerases that are missing."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer  # noqa: PLC0415
    from keras.src.losses import loss as of_keras3  # noqa: PLC0415 - TensorFlow loads here
    from tf_keras.src.utils import losses_utils as of_tf_keras  # noqa: PLC0415

    required = [
        (of_keras3, "scale_loss_for_distribution"),
        (of_keras3, "unscale_loss_for_distribution"),
        (of_keras3, "reduce_values"),
        (of_keras3, "reduce_weighted_values"),
        (TensorFlowTrainer, "_aggregate_additional_loss"),
        (of_keras3, "apply_mask"),
        (of_tf_keras, "scale_loss_for_distribution"),
        (of_tf_keras, "apply_valid_mask"),
        (of_tf_keras, "compute_weighted_loss"),
    ]
    return [name for holder, name in required if not hasattr(holder, name)]


def install(keras: Any) -> None:
    """Replace the scaling of losses of a Keras permanently, with effect within `weighted`."""
    losses = _module_of_losses(keras)
    _replace_scaling(losses)
    _replace_masking(losses)


def install_functions(keras: Any) -> None:
    """Divide functions of a whole batch and ``add_loss``, within `weighted` and `part_of`."""
    losses = _module_of_losses(keras)
    name = "reduce_weighted_values" if keras.__name__ == "keras" else "compute_weighted_loss"
    setattr(losses, name, _reducing(getattr(losses, name)))
    keras.losses.Loss.__call__ = _calling_loss(keras.losses.Loss.__call__)
    if keras.__name__ == "keras":
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer  # noqa: PLC0415

        name = "_aggregate_additional_loss"
        setattr(TensorFlowTrainer, name, _dividing(getattr(TensorFlowTrainer, name)))
        keras.metrics.Mean.update_state = _counting(keras.metrics.Mean.update_state)
        wrapper = keras.metrics.MeanMetricWrapper
        wrapper.update_state = _calling_metric(wrapper.update_state)


def _module_of_losses(keras: Any) -> ModuleType:
    if keras.__name__ == "keras":
        from keras.src.losses import loss  # noqa: PLC0415 - TensorFlow loads here

        return loss  # type: ignore[no-any-return] # Keras has no types
    from tf_keras.src.utils import losses_utils  # noqa: PLC0415 - TensorFlow loads here

    return losses_utils  # type: ignore[no-any-return] # tf-keras has no types


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
    with _within(layout):
        yield rows if layout is None or not layout.repeats else layout.counts[layout.position]


@contextlib.contextmanager
def part_of(share: Any, rows: Any) -> Iterator[None]:
    """Count values of a part of a batch by its share of the rows; gradients are averaged so."""
    with _within(Layout(rows, None, 0, share, tf.math.reciprocal_no_nan(share))):
        yield


@contextlib.contextmanager
def _within(layout: Layout | None) -> Iterator[None]:
    before = getattr(_present, "layout", None)
    _present.layout = layout
    try:
        yield
    finally:
        _present.layout = before


def _layout(rows: Any, *, repeats: bool) -> Layout:
    context = tf.distribute.get_replica_context()
    replicas, position = context.num_replicas_in_sync, context.replica_id_in_sync_group
    mine = tf.one_hot(position, replicas, dtype=tf.int32) * tf.cast(rows, tf.int32)
    counts = context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
    # Parts of a repeated batch have fewer rows than the square.
    repeats = repeats and not (isinstance(rows, int) and rows >= replicas * replicas)
    if repeats:
        pattern = [repetitions(part, replicas) for part in range(replicas)]
        is_repeated = (counts[0] < replicas) & tf.reduce_all(counts == counts[0] * pattern)
        counts = tf.where(is_repeated, counts * tf.one_hot(0, replicas, dtype=tf.int32), counts)
    own, total = tf.cast(counts[position], tf.float32), tf.cast(tf.reduce_sum(counts), tf.float32)
    weight = tf.math.divide_no_nan(own * replicas, total)
    return Layout(rows, counts, position, weight, tf.math.divide_no_nan(total, own), repeats)


def _replica() -> Layout | None:
    """Return the layout if this thread traces a replica within `weighted`."""
    layout = getattr(_present, "layout", None)
    return None if layout is None or layout.counts is None else layout


def _replace_scaling(losses: ModuleType) -> None:
    original = losses.scale_loss_for_distribution

    @functools.wraps(original)
    def scale(value: Any) -> Any:
        layout = _replica()
        if layout is None:
            return loss_terms.note_scaled(original(value))
        if _depth() > 1:  # a part of another loss, which is scaled
            return value
        return loss_terms.note_scaled(_scaled(value, layout.weight))

    losses.scale_loss_for_distribution = scale  # type: ignore[attr-defined] # a module's function
    if not hasattr(losses, "unscale_loss_for_distribution"):  # tf-keras needs none
        return
    unscaled = losses.unscale_loss_for_distribution

    @functools.wraps(unscaled)
    def unscale(value: Any) -> Any:
        layout = _replica()
        if layout is None:
            return unscaled(value)
        mean = tf.math.divide_no_nan(value, tf.cast(layout.weight, value.dtype))
        return loss_terms.note_mean(mean)

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
        layout = _replica()
        if layout is None or _depth() > 1 or reduction in {None, "none"}:
            return loss
        if not values.shape.rank:
            return losses.scale_loss_for_distribution(loss)
        if reduction == "sum":
            return losses.scale_loss_for_distribution(loss * tf.cast(layout.ratio, loss.dtype))
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
        if _replica() is None or given["mask"] is None or not is_mean:
            return weights
        return weights * _share(given["mask"], weights.dtype)

    setattr(losses, name, apply)


def _share(counts: Any, dtype: Any) -> Any:
    """Return a replica's weight by ``counts``, relative to its weight by rows."""
    context, weight = tf.distribute.get_replica_context(), _present.layout.weight
    count = tf.stop_gradient(tf.reduce_sum(tf.cast(counts, tf.float32)))
    count *= tf.cast(weight > 0, tf.float32)
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
    own = tf.math.divide_no_nan(count * context.num_replicas_in_sync, total)
    return tf.cast(tf.math.divide_no_nan(own, weight), dtype)


def _scaled(value: Any, weight: Any) -> Any:
    """Scale a loss; its gradient is that of the replicas' mean."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync

    @tf.custom_gradient  # type: ignore[untyped-decorator] # TensorFlow has no types
    def scale(loss: Any) -> Any:
        factor = tf.cast(weight, loss.dtype)
        return loss * factor, lambda upstream: upstream * factor / replicas

    return scale(tf.convert_to_tensor(value))


def _depth() -> int:
    """Return how many losses and metric functions call each other here."""
    return int(getattr(_present, "depth", 0))


@contextlib.contextmanager
def _calling(function: Callable[..., Any], *given: Any) -> Iterator[None]:
    before = getattr(_present, "function", None)
    _present.function, _present.depth = (function, given), _depth() + 1
    try:
        yield
    finally:
        _present.function, _present.depth = before, _depth() - 1


def _calling_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(loss: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        with _calling(loss.call, y_true, y_pred):
            return original(loss, y_true, y_pred, *args, **kwargs)

    return call


def _calling_metric(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(metric: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        function = functools.partial(metric._fn, **metric._fn_kwargs)
        with _calling(function, y_true, y_pred):
            return original(metric, y_true, y_pred, *args, **kwargs)

    return update


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the reduction of a loss's values, which are one number for some functions."""

    @functools.wraps(original)
    def reduce(values: Any, sample_weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        layout = getattr(_present, "layout", None)
        if layout is None or _depth() != 1 or values.shape.rank != 0:
            return original(values, sample_weight, *args, **kwargs)
        whole = _of_whole_batch(values, layout)
        if whole is not values and sample_weight is not None:
            raise _cannot_divide("the weighted loss", "return a value per row")
        return original(whole, sample_weight, *args, **kwargs)

    return reduce


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Mean.update_state``: one number for a batch counts once, not once per replica."""

    @functools.wraps(original)
    def update(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        layout = getattr(_present, "layout", None)
        if layout is None or sample_weight is not None or getattr(values, "shape", None) != ():
            return original(metric, values, sample_weight)
        if _depth():
            values = _of_whole_batch(values, layout)
        else:
            kind = loss_terms.kind_of(values, layout.given)
            if kind is Kind.SCALED or (kind is Kind.OTHER and layout.counts is not None):
                return original(metric, values)
            if kind is Kind.SUM:
                values = values * tf.cast(layout.ratio, values.dtype)
        return original(metric, values, layout.weight)

    return update


def _dividing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the scaling of ``add_loss`` and regularizers."""

    @functools.wraps(original)
    def aggregate(model: Any, loss: Any) -> Any:
        layout = getattr(_present, "layout", None)
        return original(model, loss if layout is None else _mean_of(loss, layout))

    return aggregate


def _mean_of(loss: Any, layout: Layout) -> Any:
    """Return a term that, scaled as a mean over the replica's rows, counts by its kind."""
    term = tf.reduce_sum(loss)
    kind = loss_terms.kind_of(term, layout.given)
    if kind is Kind.SUM:
        return term * tf.cast(layout.ratio, term.dtype)
    if kind is Kind.SCALED:
        weight = tf.cast(layout.weight, term.dtype)
        # Its gradient is that of the replicas' mean already.
        return _with_gradient(tf.math.divide_no_nan(term, weight), weight * layout.ratio)
    if kind is Kind.OTHER:
        raise _cannot_divide("a term of add_loss()", "add the mean over the rows, each in a call")
    return term


def _of_whole_batch(values: Any, layout: Layout) -> Any:
    """Return a function's value such that the mean over replicas is that of the whole batch."""
    kind = loss_terms.kind_of(values, layout.given)
    if kind in {Kind.MEAN, Kind.CONSTANT}:
        return values
    if kind is Kind.SUM:
        return values * tf.cast(layout.ratio, values.dtype)
    function, given = _present.function
    if layout.counts is None:
        owner = getattr(function, "__self__", function)
        raise _cannot_divide(getattr(owner, "name", "a metric function"), "return a value per row")
    with _calling(function, *given):
        whole = function(*tf.nest.map_structure(layout.gathered, given))
    # Scaling weighs the gradient as one of this replica's mean.
    return _with_gradient(whole, layout.ratio)


def _cannot_divide(what: str, cure: str) -> SpecError:
    return SpecError(
        f"{what} is neither a mean nor a sum over the rows of a batch, so that parts of a batch on "
        "several replicas cannot give its value",
        hint=f"{cure}, or train with one worker and one device",
    )


def _with_gradient(value: Any, factor: Any) -> Any:
    """Return a value whose gradient is multiplied."""

    @tf.custom_gradient  # type: ignore[untyped-decorator] # TensorFlow has no types
    def same(given: Any) -> Any:
        return tf.identity(given), lambda upstream: upstream * tf.cast(factor, upstream.dtype)

    return same(value)
