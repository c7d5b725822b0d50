"""Access state that TensorFlow and both Kerases keep under private names.

`missing_names` lists those that a release has moved; a test calls it and exercises each one.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

BACKUP = "ckpt_saved_"
"""Prefix of the names of variables in which BackupAndRestore of tf-keras counts."""


def missing_names() -> list[str]:
    """Return the required private names that are missing."""
    import tf_keras.src.backend as tf_keras_backend  # noqa: PLC0415 - TensorFlow loads here
    from keras.src.backend.common import global_state  # noqa: PLC0415
    from keras.src.random import seed_generator  # noqa: PLC0415

    required: dict[str, Any] = {
        "_SEED_GENERATOR": tf_keras_backend,
        "RandomGenerator": tf_keras_backend,
        "get_global_attribute": global_state,
        "GLOBAL_SEED_GENERATOR": seed_generator,
        "global_seed_generator": seed_generator,
        "_rng": context.context(),
        "global_seed": context,
        "global_generator": stateful_random_ops,
    }
    return [name for name, holder in required.items() if not hasattr(holder, name)]


def global_seed() -> int:
    """Return the last seed of ``tf.random.set_seed``; 0 without one."""
    return int(context.global_seed() or 0)


def op_seed_state() -> Any:
    """Return the generator state for seeds of unseeded operations; None without one."""
    return _state_of(getattr(context.context(), "_rng", None))


def set_op_seed_state(state: Any) -> None:
    """Restore the state from `op_seed_state`."""
    _set_state(getattr(context.context(), "_rng", None), state)


def tf_keras_seed_state() -> Any:
    """Return the state of tf-keras' seed generator; None if unused."""
    return _state_of(_tf_keras_seed_generator())


def set_tf_keras_seed_state(state: Any) -> None:
    """Restore the state from `tf_keras_seed_state`."""
    _set_state(_tf_keras_seed_generator(), state)


def make_generators_restorable(keras: Any) -> None:
    """Make tf-keras layers keep generator state in variables, as Keras 3 does."""
    if keras.__name__ == "tf_keras":
        keras.backend.experimental.enable_tf_random_generator()


def random_variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables of random generators outside the model's variables, with names.

    Args:
        model: Model in training.
    """
    if stateful_random_ops.global_generator is not None:
        yield "tensorflow", stateful_random_ops.global_generator.state
    if _is_tf_keras(model):
        yield from _tf_keras_generators(model)
        return
    from keras.src.backend.common import global_state  # noqa: PLC0415
    from keras.src.random import seed_generator  # noqa: PLC0415

    found = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if found is not None:
        yield "keras", found.state


def generator_for_threads(model: Any) -> Callable[[], None]:
    """Create Keras 3's global generator; return a function that makes a thread use it.

    Keras keeps one per thread, and replicas are traced in threads that cannot create variables. It
    is seeded from Python's generator, whose state is preserved for other users.
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


def tensor_variable(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras variable; others as they are."""
    is_keras_3 = any(base.__module__.startswith("keras.src") for base in type(variable).__mro__)
    return getattr(variable, "_value", variable) if is_keras_3 else variable


def identities(variables: Iterable[Any]) -> set[int]:
    """Return ``id`` of TensorFlow's variables behind those of a model, and of their wrappers."""
    found = set()
    for variable in variables:
        inner = tensor_variable(variable)
        while inner is not None:
            found.add(id(inner))
            content = getattr(inner, "__dict__", {})
            inner = content.get("_v", content.get("_variable"))
    return found


@contextlib.contextmanager
def tables_noted(note: Callable[[Any], None]) -> Iterator[None]:
    """Call ``note`` with each mutable hash table that is created within the block."""
    kinds = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
    originals = [kind.__init__ for kind in kinds]

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def initialize(table: Any, *args: Any, **options: Any) -> None:
            original(table, *args, **options)
            note(table)

        return initialize

    for kind, original in zip(kinds, originals, strict=True):
        kind.__init__ = noting(original)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.__init__ = original


def table_content(table: Any) -> np.ndarray[Any, Any]:
    """Return keys and values of a mutable hash table as bytes."""
    parts = tf.stack([tf.io.serialize_tensor(part) for part in table.export()])
    return np.frombuffer(tf.io.serialize_tensor(parts).numpy(), np.uint8)


def set_table_content(table: Any, content: np.ndarray[Any, Any]) -> None:
    """Replace the content of a mutable hash table by that from `table_content`."""
    keys, values = tf.unstack(tf.io.parse_tensor(content.tobytes(), tf.string))
    table.remove(table.export()[0])
    table.insert(
        tf.io.parse_tensor(keys, table.key_dtype), tf.io.parse_tensor(values, table.value_dtype)
    )


def when_built(optimizer: Any, model: Any, then: Callable[[], None]) -> None:
    """Call ``then`` once, as soon as a model's optimizer has created its variables."""
    if not hasattr(optimizer, "build"):  # tf-keras' legacy ones
        optimizer._create_all_weights(model.trainable_variables)
    if getattr(optimizer, "built", getattr(optimizer, "_built", not hasattr(optimizer, "build"))):
        then()
        return
    original = optimizer.build

    @functools.wraps(original)
    def build(*args: Any, **options: Any) -> Any:
        optimizer.__dict__.pop("build", None)
        found = original(*args, **options)
        with tf.init_scope():
            then()
        return found

    object.__setattr__(optimizer, "build", build)  # bypasses Keras' tracking of attributes


def compiled_parts(model: Any) -> tuple[Any, ...]:
    """Return what ``compile`` makes anew each time."""
    loss = "compiled_loss" if _is_tf_keras(model) else "_compile_loss"
    return getattr(model, "optimizer", None), getattr(model, loss, None)


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of metrics that ``fit`` resets each epoch."""
    found = [variable for metric in model.metrics for variable in metric.variables]
    return list({id(variable): variable for variable in found}.values())


def count_steps(model: Any, steps: int) -> None:
    """Set tf-keras' step counter of a ``fit``, which its callbacks use."""
    counter = getattr(model, "_train_counter", None)
    if counter is not None:
        counter.assign(steps)


def build_metrics(keras: Any, model: Any, spec: Any) -> None:
    """Create the metrics' variables of a built model, which Keras creates in the first step.

    Args:
        keras: Keras of the model.
        model: Built and compiled model.
        spec: ``tf.TypeSpec`` of the training batches.
    """
    if not all(isinstance(found, tf.TensorSpec) for found in tf.nest.flatten(spec)):
        return
    with model.distribute_strategy.scope():
        if keras.__name__ == "keras":
            with _as_built(getattr(model, "optimizer", None)):
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


@contextlib.contextmanager
def _as_built(optimizer: Any) -> Iterator[None]:
    """Keep Keras from building an optimizer: the step may give it other variables."""
    is_built = getattr(optimizer, "built", True)
    if is_built:
        yield
        return
    optimizer.built = True
    try:
        yield
    finally:
        optimizer.built = False


def _state_of(generator: Any) -> Any:
    return None if generator is None else generator.getstate()


def _set_state(generator: Any, state: Any) -> None:
    if generator is not None and state is not None:
        generator.setstate(state)


def _tf_keras_generators(model: Any) -> Iterator[tuple[str, Any]]:
    for number, layer in enumerate(model._flatten_layers()):
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            yield f"layer-{number}", generator.state


def _is_tf_keras(model: Any) -> bool:
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def _tf_keras_seed_generator() -> Any:
    backend = sys.modules.get("tf_keras.src.backend")
    return None if backend is None else getattr(backend._SEED_GENERATOR, "generator", None)
