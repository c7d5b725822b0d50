"""Private names of TensorFlow and the Kerases in which state is held that cannot be seen otherwise.

`missing_names` lists those that a release has moved; a test calls it and tries each one out.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any


def missing_names() -> list[str]:
    """Return the private names that are not there."""
    import tf_keras.src.backend as tf_keras_backend  # noqa: PLC0415 - TensorFlow loads here
    from keras.src.backend.common import global_state  # noqa: PLC0415
    from keras.src.random import seed_generator  # noqa: PLC0415
    from tensorflow.python.eager import context  # noqa: PLC0415
    from tensorflow.python.ops import stateful_random_ops  # noqa: PLC0415

    wanted: dict[str, Any] = {
        "_SEED_GENERATOR": tf_keras_backend,
        "RandomGenerator": tf_keras_backend,
        "get_global_attribute": global_state,
        "GLOBAL_SEED_GENERATOR": seed_generator,
        "global_seed_generator": seed_generator,
        "_rng": context.context(),
        "global_seed": context,
        "global_generator": stateful_random_ops,
    }
    return [name for name, holder in wanted.items() if not hasattr(holder, name)]


def global_seed() -> int:
    """Return the seed that ``tf.random.set_seed`` was given last; 0 without one."""
    from tensorflow.python.eager import context  # noqa: PLC0415 - TensorFlow loads here

    return int(context.global_seed() or 0)


def op_seed_state() -> Any:
    """Return the state from which operations without a seed are given theirs; None without one."""
    from tensorflow.python.eager import context  # noqa: PLC0415 - TensorFlow loads here

    generator = getattr(context.context(), "_rng", None)
    return None if generator is None else generator.getstate()


def set_op_seed_state(state: Any) -> None:
    """Give back what `op_seed_state` has found."""
    from tensorflow.python.eager import context  # noqa: PLC0415 - TensorFlow loads here

    generator = getattr(context.context(), "_rng", None)
    if generator is not None and state is not None:
        generator.setstate(state)


def tf_keras_seed_state() -> Any:
    """Return the state from which tf-keras makes seeds; None where it is not used or has none."""
    generator = _tf_keras_seed_generator()
    return None if generator is None else generator.getstate()


def set_tf_keras_seed_state(state: Any) -> None:
    """Give back what `tf_keras_seed_state` has found."""
    generator = _tf_keras_seed_generator()
    if generator is not None and state is not None:
        generator.setstate(state)


def make_generators_restorable(keras: Any) -> None:
    """Let layers of tf-keras draw from generators whose state is a variable, as Keras 3's do."""
    if keras.__name__ == "tf_keras":
        keras.backend.experimental.enable_tf_random_generator()


def random_variables(model: Any, *, create: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the variables of generators that are none of the model's own variables, with a name.

    Args:
        model: What is trained.
        create: Make Keras 3's global generator if it was not needed yet.
    """
    from tensorflow.python.ops import stateful_random_ops  # noqa: PLC0415 - TensorFlow loads here

    if stateful_random_ops.global_generator is not None:
        yield "tensorflow", stateful_random_ops.global_generator.state
    if _is_tf_keras(model):
        yield from _tf_keras_generators(model)
        return
    from keras.src.backend.common import global_state  # noqa: PLC0415
    from keras.src.random import seed_generator  # noqa: PLC0415

    found = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if found is None and create:
        found = seed_generator.global_seed_generator()
    if found is not None:
        yield "keras", found.state


def generator_for_threads(model: Any) -> Callable[[], None]:
    """Make Keras 3's global generator; return what lets another thread draw from it as well.

    Keras keeps it per thread, and replicas are traced in threads that cannot make variables. Its
    seed comes from Python's generator, which others draw from too: that stays as it was.
    """
    if _is_tf_keras(model):
        return lambda: None
    from keras.src.backend.common import global_state  # noqa: PLC0415 - TensorFlow loads here
    from keras.src.random import seed_generator  # noqa: PLC0415

    before = random.getstate()
    found = seed_generator.global_seed_generator()
    random.setstate(before)
    name = seed_generator.GLOBAL_SEED_GENERATOR
    return lambda: global_state.set_global_attribute(name, found)


def schedule_variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield a learning rate that callbacks change; tf-keras leaves it out of its variables."""
    rate = getattr(getattr(model, "optimizer", None), "_learning_rate", None)
    if _is_tf_keras(model) and hasattr(rate, "assign"):
        yield "learning-rate", rate


def tensor_variable(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras variable; others are that already."""
    return getattr(variable, "_value", variable) if _is_keras_3(variable) else variable


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of the metrics that ``fit`` resets at the begin of an epoch."""
    found = [variable for metric in model.metrics for variable in metric.variables]
    return list({id(variable): variable for variable in found}.values())


def count_steps(model: Any, steps: int) -> None:
    """Let tf-keras, whose callbacks number their steps by it, have counted so many of a ``fit``."""
    counter = getattr(model, "_train_counter", None)
    if counter is not None:
        counter.assign(steps)


def build_metrics(keras: Any, model: Any, spec: Any) -> None:
    """Make the variables of a built model's metrics, which Keras makes in the first step.

    Args:
        keras: The Keras of the model.
        model: A built and compiled model.
        spec: The ``tf.TypeSpec`` of the batches that it is trained on.
    """
    import tensorflow as tf  # noqa: PLC0415 - TensorFlow loads here

    if not all(isinstance(found, tf.TensorSpec) for found in tf.nest.flatten(spec)):
        return
    with model.distribute_strategy.scope():
        if keras.__name__ == "keras":
            model._symbolic_build(data_batch=spec)
            return
        x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
        if y is None:
            return

        def look(*batch: Any) -> Any:
            x, y = batch
            predicted = model(x, training=False)
            model.compiled_loss.build(predicted)
            model.compiled_metrics.build(predicted, y)
            return predicted

        tf.function(look).get_concrete_function(x, y)


def _tf_keras_generators(model: Any) -> Iterator[tuple[str, Any]]:
    for number, layer in enumerate(model._flatten_layers()):
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            yield f"layer-{number}", generator.state


def _is_tf_keras(model: Any) -> bool:
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def _is_keras_3(variable: Any) -> bool:
    return any(base.__module__.startswith("keras.src") for base in type(variable).__mro__)


def _tf_keras_seed_generator() -> Any:
    backend = sys.modules.get("tf_keras.src.backend")
    return None if backend is None else getattr(backend._SEED_GENERATOR, "generator", None)
