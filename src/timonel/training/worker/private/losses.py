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
import logging
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.private import loss_terms
from timonel.training.worker.private.attributes import replaced, wrap
from timonel.training.worker.private.loss_terms import Batch, Kind
from timonel.training.worker.private.replica_rows import Layout, layout_of

logger = logging.getLogger(__name__)

Warn = Callable[[str], object]


class _Present(threading.local):
    """State of the replica that this thread traces: each has its own thread.

    ``layout`` is None outside `weighted` and `part_of`. ``inputs`` are those of the innermost
    layer, ``terms`` what each layer adds. ``outputs`` are those of layers that no layer calls, and
    of BatchNormalization: terms are examined from there on.

    ``depth`` is the number of losses and metric functions that call each other here. The outer one
    has ``name``; ``whole`` computes it for the whole batch, and ``batch`` has its arguments.
    ``caught`` gets what a metric function returns.
    """

    layout: Any = None
    inputs: Any = None
    outputs: list[Any]
    terms: dict[int, list[Any]]
    depth = 0
    name = ""
    whole: Callable[[], Any]
    batch: Batch
    caught: list[Any] | None = None


_present = _Present()
_warn: Warn = logger.warning

_ADDED = "_timonel_added"
_ONE_NUMBER = "returns one number per batch"
_OF_PAIRS = frozenset({"circle"})
"""Functions of Keras that compute values of rows from other rows."""


def warn(line: str) -> None:
    """Show the user a line, once."""
    _warn(line)


def install(keras: Any, warn: Warn) -> None:
    """Replace the scaling of losses of a Keras permanently, with effect within `weighted`."""
    losses = _module_of_losses(keras)
    wrap(losses, "scale_loss_for_distribution", _scaling)
    if keras.__name__ == "keras":
        wrap(losses, "unscale_loss_for_distribution", _unscaling)
    else:
        wrap(losses, "apply_valid_mask", _masking)
        wrap(_container_of_losses(), "_get_loss_object", _scaling_sums)
    install_functions(keras, warn)


def install_functions(keras: Any, warn: Warn) -> None:
    """Divide functions of a whole batch and ``add_loss``, within `weighted` and `part_of`."""
    global _warn  # noqa: PLW0603 - a process has one user
    _warn = functools.cache(warn)  # every replica is traced, and a step several times
    losses, layer = _module_of_losses(keras), keras.layers.Layer
    wrap(layer, "__call__", functools.partial(_calling_layer, keras=keras))
    wrap(layer, "add_loss", _adding_loss)
    wrap(keras.losses.Loss, "__call__", _calling_loss)
    wrap(keras.metrics.Mean, "update_state", _counting)
    wrap(keras.metrics.MeanMetricWrapper, "update_state", _calling_metric)
    if keras.__name__ == "keras":
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer  # noqa: PLC0415

        wrap(losses, "reduce_weighted_values", functools.partial(_reducing, losses=losses))
        layer._losses = _terms_of_replica()
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
    """Weigh losses by the replica's share of rows, unless None; yield the rows that count."""
    layout = None if rows is None else layout_of(rows, repeats=repeats)
    with replaced(_present, layout=layout, outputs=[], terms={}):
        yield layout and layout.rows


def part_of(share: Any, rows: Any) -> contextlib.AbstractContextManager[None]:
    """Count values of a part of a batch by its share of the rows; gradients are averaged so."""
    layout = Layout(rows, rows, None, 0, share, tf.math.reciprocal_no_nan(share))
    return replaced(_present, layout=layout, outputs=[], terms={})


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
        if _present.layout is None or mask is None or reduction != "sum_over_batch_size":
            return weights
        return _times(weights, _share(mask))

    return apply


def _warn_of_part(name: str) -> None:
    """Tell what averages over a part of a batch, of which `part_of` knows only the rows."""
    warn(
        f"{name}: averages over the part of a batch that a worker has, as always when batches are "
        "divided"
    )


def _share(counts: Any) -> Any:
    """Return a replica's weight by ``counts``, relative to its weight by rows."""
    if _replica() is None:
        _warn_of_part(_present.name)
        return 1.0
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
    name: str, function: Callable[..., Any], *given: Any, own: Any = None
) -> Iterator[None]:
    """Note the loss or metric function that is called within the block.

    ``function`` computes it from ``given``; ``own``, of the script or of Keras, computes its
    values.
    """
    layout, depth = _present.layout, _present.depth + 1

    def whole() -> Any:
        if layout is None or layout.counts is None:
            raise _cannot_divide(name, "return a value per row, computed from this row alone")
        with replaced(_present, depth=depth + 1):
            found = function(*tf.nest.map_structure(layout.gathered, given))
        # Scaling weighs the gradient as one of this replica's mean.
        return _with_gradient(found, layout.ratio)

    is_independent = _is_kerases(own) and own.__name__ not in _OF_PAIRS
    batch = layout and _batch(name, given, is_independent=is_independent)
    with replaced(_present, depth=depth, name=name, whole=whole, batch=batch):
        yield


def _batch(what: str, given: Any, *, is_independent: bool = False) -> Batch:
    """Return the rows of this replica from which a function or a term is computed."""

    def unclear() -> None:
        warn(
            f"{what}: values of rows may depend on other rows, which cannot be found out. Each "
            "replica computes them from its own rows: if they do, train with one worker and one "
            "device."
        )

    tensors = [each for each in tf.nest.flatten(given) if hasattr(each, "graph")]
    return Batch(_present.layout.given, tensors, unclear, is_independent)


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
    """Wrap the reduction of a loss's values; Keras 3 scales means in ``losses``, tf-keras later."""

    def scale(value: Any) -> Any:
        return losses.scale_loss_for_distribution(value) if losses else value

    def reduce(values: Any, sample_weight: Any = None, **options: Any) -> Any:
        layout, mask = _present.layout, options.get("mask")
        if layout is None or _present.depth != 1:
            return original(values, sample_weight, **options)
        if not values.shape.rank or _present.batch.mixes(values):
            value = _value_of_function(values, sample_weight, mask, options["reduction"])
            return scale(original(value, None, **{**options, "mask": None} if losses else options))
        loss, reduction = original(values, sample_weight, **options), options["reduction"]
        if reduction in {None, "none"}:
            return loss
        if reduction == "sum":
            return scale(loss_terms.noted(_times(loss, layout.ratio), Kind.MEAN))
        if reduction == "mean_with_sample_weight":
            mask = losses.apply_mask(sample_weight, mask, loss.dtype, reduction)
        kind = Kind.MEAN if layout.counts is None else Kind.SCALED
        return loss if mask is None else loss_terms.noted(_times(loss, _share(mask)), kind)

    return reduce


def _counting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Mean.update_state``: one number for a batch counts once, not once per replica."""

    def update(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        if _present.caught is not None:
            _present.caught.append(values)
            return None
        layout, depth = _present.layout, _present.depth
        if layout is None or (sample_weight is not None and not depth):
            return original(metric, values, sample_weight)
        is_number = getattr(values, "shape", None) == ()
        if not is_number and not (depth and _present.batch.mixes(values)):
            return original(metric, values, sample_weight)
        found = _value_of_function(values, sample_weight) if depth else _own_mean(metric, values)
        return original(metric, found, layout.weight if is_number else layout.rows)

    return update


def _own_mean(metric: Any, value: Any) -> Any:
    """Return a number with which the script updates a metric, as a mean over rows."""
    what = f"The metric {metric.name}"

    def of_replicas() -> Any:
        warn(
            f"{what} gets a number that is neither a mean nor a sum over the rows of a batch: it "
            "averages those of replicas, each computed from its own rows."
        )
        return value

    return _row_mean(value, of_replicas, _batch(what, _present.outputs))


def _calling_layer(original: Callable[..., Any], keras: Any) -> Callable[..., Any]:
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if _present.layout is None:
            return original(layer, *args, **kwargs)
        is_outer, inputs = _present.inputs is None, tf.nest.flatten((args, kwargs))
        with replaced(_present, inputs=inputs):
            found = original(layer, *args, **kwargs)
        # It averages over a replica's rows in any case.
        is_normal = isinstance(layer, keras.layers.BatchNormalization)
        if is_normal and _replica() is None:
            _warn_of_part(layer.name)
        if is_outer or is_normal:
            _present.outputs.append(found)
        return found

    return call


def _adding_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``add_loss`` to note from what a layer computes its terms."""

    def add_loss(layer: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        for term in tf.nest.flatten(loss):
            if hasattr(term, "graph"):
                what = f"a term of add_loss() of the layer {layer.name}"
                setattr(term, _ADDED, (what, _present.inputs or ()))
        return original(layer, loss, *args, **kwargs)

    return add_loss


def _terms_of_replica() -> property:
    """Return a list of Keras 3 for each replica: they take turns while a layer is called."""

    def get(layer: Any) -> list[Any]:
        if _present.layout is None:
            return vars(layer).setdefault("_losses", [])  # type: ignore[no-any-return] # of Keras
        return _present.terms.setdefault(id(layer), [])

    return property(get, lambda layer, value: vars(layer).update(_losses=value))


def _adding_keras3(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the scaling of ``add_loss`` and regularizers."""

    def aggregate(model: Any, loss: Any) -> Any:
        return original(model, loss if _present.layout is None else _term(loss, may_be_vector=True))

    return aggregate


def _adding_tf_keras(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the sum of the losses of ``compile``, ``add_loss`` and regularizers."""

    def call(container: Any, *given: Any, regularization_losses: Any = None, **weights: Any) -> Any:
        if _present.layout is not None:
            terms = regularization_losses or ()
            # It reports the mean of a vector, but trains its sum.
            regularization_losses = [_term(loss) for loss in terms]
        return original(container, *given, regularization_losses=regularization_losses, **weights)

    return call


def _term(value: Any, *, may_be_vector: bool = False) -> Any:
    """Return a term of ``add_loss`` as a mean over rows."""
    what, inputs = getattr(value, _ADDED, ("a term of add_loss()", ()))

    def reject() -> Any:
        cure = "add the mean over rows, each computed from itself, or a loss of a keras.losses.Loss"
        raise _cannot_divide(what, cure)

    if value.shape.rank and not may_be_vector:
        return reject()
    value = tf.reduce_sum(value) if value.shape.rank else value
    return _row_mean(value, reject, _batch(what, (inputs, _present.outputs)))


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
        return _row_mean(value, _present.whole, _present.batch)
    if reduction in {None, "none"}:
        raise _cannot_divide(_present.name, "use reduction='sum_over_batch_size'")
    reduce = tf.reduce_sum if reduction == "sum" else tf.reduce_mean
    return loss_terms.noted(reduce(_present.whole()), Kind.MEAN)


def _row_mean(value: Any, otherwise: Callable[[], Any], batch: Batch) -> Any:
    """Return a number as a mean over the replica's rows; ``otherwise()`` if its kind is OTHER."""
    kind = loss_terms.kind_of(value, batch)
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
