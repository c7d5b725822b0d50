"""Count terms that layers add to a loss, and what layers compute from them, over all rows.

A layer of the script that computes rows from other rows, as one that compares all pairs of a batch,
has only the rows of its replica.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from timonel.training.worker.private.attributes import replaced, wrap
from timonel.training.worker.private.hidden_state import is_kerases, tensor_variable
from timonel.training.worker.private.loss_terms import present
from timonel.training.worker.private.row_dependence import captured, reached
from timonel.training.worker.private.row_means import (
    batch_of,
    cannot_divide,
    replica,
    row_mean,
    warn,
    warn_of_part,
)
from timonel.training.worker.script_files import is_class_of_script

_ADDED = "_timonel_added"
_examined: weakref.WeakSet[Any] = weakref.WeakSet()


def install(keras: Any) -> None:
    """Replace calls of layers, and the sums of what they add to a loss, permanently."""
    layer = keras.layers.Layer
    wrap(layer, "__call__", functools.partial(_calling_layer, keras))
    wrap(layer, "add_loss", _adding_loss)
    if keras.__name__ == "keras":
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer  # noqa: PLC0415

        wrap(keras.layers.BatchNormalization, "_moments", _normalizing)
        layer._losses = _terms_of_replica()
        wrap(TensorFlowTrainer, "_aggregate_additional_loss", _adding_keras3)
    else:
        from tf_keras.src.engine.compile_utils import LossesContainer  # noqa: PLC0415

        wrap(keras.layers.BatchNormalization, "_get_training_value", _choosing_mode)
        wrap(LossesContainer, "__call__", _adding_tf_keras)


def _calling_layer(
    keras: Any, original: Callable[..., Any], layer: Any, /, *args: Any, **kwargs: Any
) -> Any:
    if present.layout is None or _is_operation(layer):
        return original(layer, *args, **kwargs)
    is_outer, inputs = present.inputs is None, tf.nest.flatten((args, kwargs))
    values: list[Any] = []
    if not is_outer:
        present.values += inputs
    with replaced(present, inputs=inputs, values=values):
        found = original(layer, *args, **kwargs)
    outputs = tf.nest.flatten(found)
    if layer not in _examined and _calls_operations(keras, layer):
        _examined.add(layer)
        _warn_of_mixed_rows(layer, inputs, [*values, *outputs])
    present.computed += outputs
    if is_outer or isinstance(layer, keras.layers.BatchNormalization):
        present.outputs.append(found)
    return found


def _normalizing(original: Callable[..., Any], layer: Any, /, inputs: Any, mask: Any) -> Any:
    """Wrap the mean and variance of a batch, which Keras 3 computes in training only."""
    # With a mask they are those of the replica in any case.
    _warn_of_own_moments(layer, is_masked=mask is not None)
    return original(layer, inputs, mask)


def _choosing_mode(original: Callable[..., Any], layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Wrap the choice between training and inference of a BatchNormalization of tf-keras."""
    is_training = original(layer, *args, **kwargs)
    if is_training is not False:
        _warn_of_own_moments(layer)
    return is_training


def _warn_of_own_moments(layer: Any, *, is_masked: bool = False) -> None:
    if present.layout is None:
        return
    if replica() is None:
        warn_of_part(layer.name)
    elif is_masked or not layer.synchronized:
        warn(
            "BatchNormalization computes mean and variance from the rows of each replica, so that "
            "the results differ from those of one worker and one device: without a mask, "
            "BatchNormalization(synchronized=True) computes them from all rows"
        )


def _is_operation(layer: Any) -> bool:
    """Whether a layer of tf-keras stands for an operation between those of a functional model."""
    return type(layer).__name__ in {"TFOpLambda", "SlicingOpLambda"}


def _calls_operations(keras: Any, layer: Any) -> bool:
    """Whether a layer may compute anything besides the layers that it calls."""
    if isinstance(layer, keras.layers.BatchNormalization) and is_kerases(type(layer).call):
        return False  # it has a warning of its own
    inner = [*getattr(layer, "operations", ()), *getattr(layer, "layers", ())]
    return (
        is_class_of_script(type(layer))
        or isinstance(layer, keras.layers.Lambda)
        or any(not isinstance(each, keras.layers.Layer) or _is_operation(each) for each in inner)
    )


def _warn_of_mixed_rows(layer: Any, inputs: Sequence[Any], values: Sequence[Any]) -> None:
    """Tell the user if a layer has computed the values, its own or those of its layers, so."""
    # Layers that it has called are examined by themselves.
    batch = batch_of(f"the layer {layer.name}", (inputs, present.computed))
    known = {each.name for each in batch.given}
    tensors = [each for each in values if hasattr(each, "graph") and each.name not in known]
    computed = {
        each.name: tf.cast(tf.reshape(each, [batch.rows, -1]), tf.float64)
        for each in tensors
        if each.shape.rank and each.dtype != tf.string and batch.has_rows(each)
    }
    is_mixed = computed and batch.mixes(tf.concat(list(computed.values()), 1))
    if is_mixed or _averages_rows(layer, batch.given, tensors):
        warn(
            f"the layer {layer.name} computes rows from other rows of the batch: each replica, or "
            "worker, computes them from its own rows only, so that the results differ from those "
            "of one worker and one device"
        )


def _averages_rows(layer: Any, inputs: Sequence[Any], values: Sequence[Any]) -> bool:
    """Whether values use variables to which each replica assigns what it computes from its rows."""
    parts = [each for part in layer._flatten_layers(include_self=False) for each in part.variables]
    own = [each for each in layer.non_trainable_variables if all(each is not one for one in parts)]
    own += [each for each in vars(layer).values() if isinstance(each, tf.Variable)]
    handles = {
        id(each.handle)
        for each in map(tensor_variable, own)
        if each.aggregation == tf.VariableAggregation.NONE
        or each.synchronization == tf.VariableSynchronization.ON_READ
    }
    used = {name for name, each in reached(values).items() if id(captured(each)) in handles}
    operations = tf.compat.v1.get_default_graph().get_operations() if used else ()
    assigned = [
        each.inputs[1]
        for each in operations
        if each.type.startswith("Assign") and each.inputs[0].name in used
    ]
    return not reached(assigned).keys().isdisjoint(each.name for each in inputs)


def _adding_loss(
    original: Callable[..., Any], layer: Any, /, loss: Any, *args: Any, **kwargs: Any
) -> Any:
    """Wrap ``add_loss`` to note from what a layer computes its terms."""
    for term in tf.nest.flatten(loss):
        if hasattr(term, "graph"):
            what = f"a term of add_loss() of the layer {layer.name}"
            setattr(term, _ADDED, (what, present.inputs or ()))
    return original(layer, loss, *args, **kwargs)


def _terms_of_replica() -> property:
    """Return a list of Keras 3 for each replica: they take turns while a layer is called."""

    def get(layer: Any) -> list[Any]:
        if present.layout is None:
            return vars(layer).setdefault("_losses", [])  # type: ignore[no-any-return] # of Keras
        return present.terms.setdefault(id(layer), [])

    return property(get, lambda layer, value: vars(layer).update(_losses=value))


def _adding_keras3(original: Callable[..., Any], model: Any, loss: Any) -> Any:
    """Wrap the scaling of ``add_loss`` and regularizers."""
    return original(model, loss if present.layout is None else _term(loss, may_be_vector=True))


def _adding_tf_keras(
    original: Callable[..., Any],
    container: Any,
    *given: Any,
    regularization_losses: Any = None,
    **weights: Any,
) -> Any:
    """Wrap the sum of the losses of ``compile``, ``add_loss`` and regularizers."""
    if present.layout is not None:
        terms = regularization_losses or ()
        # It reports the mean of a vector, but trains its sum.
        regularization_losses = [_term(loss) for loss in terms]
    return original(container, *given, regularization_losses=regularization_losses, **weights)


def _term(value: Any, *, may_be_vector: bool = False) -> Any:
    """Return a term of ``add_loss`` as a mean over rows."""
    what, inputs = getattr(value, _ADDED, ("a term of add_loss()", ()))

    def reject() -> Any:
        cure = "add the mean over rows, each computed from itself, or a loss of a keras.losses.Loss"
        raise cannot_divide(what, cure)

    if value.shape.rank and not may_be_vector:
        return reject()
    value = tf.reduce_sum(value) if value.shape.rank else value
    return row_mean(value, reject, batch_of(what, (inputs, present.outputs)))
