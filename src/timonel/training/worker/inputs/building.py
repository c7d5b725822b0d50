"""Inspect and build a Keras 3 or tf-keras model before ``fit``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, ValuesView
from typing import Any

import tensorflow as tf

from timonel.errors import TimonelError
from timonel.models.keras_model import is_without_call
from timonel.training.worker.inputs.fit_data import data_spec, is_dataset
from timonel.training.worker.private import hidden_state


def model_variables(model: Any) -> list[Any]:
    """Return the variables that a model has by now."""
    try:
        return list(model.variables)
    except ValueError:  # tf-keras refuses as long as the model is not built
        return []


def trained_variables(model: Any) -> dict[int, bool]:
    """Return whether the model trains each of its variables, by its ``id``."""
    found = dict.fromkeys(hidden_state.identities(model_variables(model)), False)
    return found | dict.fromkeys(
        hidden_state.identities(model.trainable_variables if found else ()), True
    )


def differ(some: Mapping[int, bool], others: Mapping[int, bool]) -> bool:
    """Whether variables that both have are trained in one only."""
    return any(others.get(each, is_trained) != is_trained for each, is_trained in some.items())


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return the state of an optimizer, or of none."""
    own = getattr(optimizer, "variables", [])
    return list(own() if callable(own) and not isinstance(own, list) else own)


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the optimizers that a model's attributes hold, such as both of a GAN, by place."""
    found: dict[str, Any] = {}
    for name, value in list(vars(model).items()):
        parts = value.values() if isinstance(value, Mapping) else value
        several = parts if isinstance(parts, list | tuple | ValuesView) else (value,)
        for place, each in enumerate(several):
            if hasattr(type(each), "apply_gradients"):
                found[f"{name}/{place}"] = each
    return found


def ensure_built(keras: Any, model: Any, data: Any, parts: Collection[str] = ()) -> None:
    """Build a model, and parts of `hidden_state.built_parts`, before restoring saved state.

    A model without ``call()``, such as a GAN, cannot be built from here: its parts are models. Data
    that cannot be read without consuming them are an error if the model takes its shapes from them.
    """
    if is_without_call(model):
        return
    if not (model.built and model.variables):
        try:
            if is_dataset(data):
                # As in training. Reading a row would begin a pass, and move the order of the next.
                tf.function(model).get_concrete_function(data_spec(data))
            else:
                model(_first_rows(keras, data))
        except (RuntimeError, TypeError, ValueError, tf.errors.InvalidArgumentError):
            if not hidden_state.may_take_other_data(model):
                raise
    if parts and is_dataset(data):
        hidden_state.build_metrics(keras, model, data.element_spec, parts)


def averaging(model: Any, strategy: Any, replicas: int) -> Callable[[], None]:
    """Return a function that averages state which each replica changes separately.

    The moving averages of BatchNormalization, and other variables that a layer assigns without
    training them, differ between replicas: workers would validate and export different models. All
    tasks of a job must call the function together, as in training. The model need not be built
    before the first call.
    """
    if replicas == 1:
        return lambda: None
    made = functools.cache(_averaging)

    def agree() -> None:
        made(model, strategy)()

    return agree


def _averaging(model: Any, strategy: Any) -> Callable[[], None]:
    local = [found for found in model.non_trainable_variables if "float" in str(found.dtype)]
    if not local:
        return lambda: None

    def average() -> None:
        for found in local:
            found.assign(_mean(strategy, found))

    return tf.function(average)  # type: ignore[no-any-return] # TensorFlow has no types


def _mean(strategy: Any, variable: Any) -> Any:
    if callable(variable.value):  # tf-keras uses TensorFlow's variables, which average when read
        return variable.read_value()
    return strategy.reduce("MEAN", strategy.run(lambda: tf.identity(variable.value)), axis=None)


def _first_rows(keras: Any, data: Any) -> Any:
    if hasattr(data, "__next__"):
        raise TimonelError(
            "cannot resume: the model takes its shapes from the data, which is a generator",
            hint="start the model with keras.Input(...)",
        )
    if isinstance(data, getattr(keras.utils, "PyDataset", keras.utils.Sequence)):
        batch = data[0]
        data = batch[0] if isinstance(batch, tuple) else batch
    return tf.nest.map_structure(lambda value: tf.convert_to_tensor(value[:1]), data)
