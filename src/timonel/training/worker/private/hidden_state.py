"""Access state that TensorFlow and both Kerases keep under private names.

A test exercises each one.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from timonel.training.worker.private.attributes import replaced
from timonel.training.worker.private.gradient_sums import innermost

BACKUP = "ckpt_saved_"
"""Prefix of the names of variables in which BackupAndRestore of tf-keras counts."""
_BUILDS_METRICS = ("keras/src/trainers/compile_utils.py", "tf_keras/src/engine/compile_utils.py")


def global_seed() -> int:
    """Return the last seed of ``tf.random.set_seed``; 0 without one."""
    return int(context.global_seed() or 0)


def seed_generators() -> dict[str, Any]:
    """Return the generators of seeds for unseeded operations, and of tf-keras; None if unused."""
    tf_keras = sys.modules.get("tf_keras.src.backend")
    return {
        "tensorflow": getattr(context.context(), "_rng", None),
        "tf_keras": getattr(getattr(tf_keras, "_SEED_GENERATOR", None), "generator", None),
    }


def make_generators_restorable(keras: Any) -> None:
    """Make tf-keras layers keep generator state in variables, as Keras 3 does."""
    if keras.__name__ == "tf_keras":
        keras.backend.experimental.enable_tf_random_generator()


def random_variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and variables of random generators outside the model's variables."""
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
    """Create Keras 3's global generator; return a function that makes a thread use it."""
    # Keras keeps one per thread, and replicas are traced in threads that cannot create variables.
    # It is seeded from Python's generator, whose state is preserved for other users.
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


def wrapped(variable: Any) -> Iterator[Any]:
    """Yield a variable's TensorFlow variable, and those in wrappers of strategy and tf-keras."""
    inner = tensor_variable(variable)
    while inner is not None:
        yield inner
        content = getattr(inner, "__dict__", {})
        inner = content.get("_v", content.get("_variable"))


def is_kerases(thing: Any) -> bool:
    """Return whether a class or function belongs to either Keras, not to a script."""
    return str(getattr(thing, "__module__", "")).startswith(("keras.", "tf_keras."))


def identities(variables: Iterable[Any]) -> set[int]:
    """Return ``id`` of TensorFlow's variables behind those of a model, and of their wrappers."""
    return {id(inner) for variable in variables for inner in wrapped(variable)}


@contextlib.contextmanager
def tables_noted(note: Callable[[Any], None]) -> Iterator[None]:
    """Call ``note`` with each mutable hash table that is created within the block."""

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        def initialize(table: Any, *args: Any, **options: Any) -> None:
            original(table, *args, **options)
            note(table)

        return initialize

    mutable, dense = tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable
    with (
        replaced(mutable, __init__=noting(mutable.__init__)),
        replaced(dense, __init__=noting(dense.__init__)),
    ):
        yield


@contextlib.contextmanager
def creator_of_threads(creator: Callable[..., Any]) -> Iterator[None]:
    """Use a creator of variables in threads that are started within the block, too."""

    def start(thread: threading.Thread) -> None:
        run = thread.run

        def watched() -> None:
            with tf.variable_creator_scope(creator):
                run()

        thread.run = watched  # type: ignore[method-assign]
        original(thread)

    original = threading.Thread.start
    with replaced(threading.Thread, start=start):
        yield


def _exported(table: Any) -> tuple[Any, Any]:
    """Return keys and values of a mutable hash table."""
    keys, values = table.export()
    if not isinstance(table, tf.lookup.experimental.DenseHashTable):
        return keys, values
    # Dense ones export their unused rows, too, and scalars as vectors.
    unused = [
        tf.convert_to_tensor(key, table.key_dtype) for key in (table._empty_key, table._deleted_key)
    ]
    count = tf.shape(keys)[0]
    keys = tf.reshape(keys, [count, *unused[0].shape])
    values = tf.reshape(values, [count, *table._value_shape])
    differ = [tf.reduce_any(tf.reshape(keys != key, [count, -1]), 1) for key in unused]
    return keys[differ[0] & differ[1]], values[differ[0] & differ[1]]


def table_content(table: Any) -> np.ndarray[Any, Any]:
    """Return keys and values of a mutable hash table as bytes."""
    parts = tf.stack([tf.io.serialize_tensor(part) for part in _exported(table)])
    return np.frombuffer(tf.io.serialize_tensor(parts).numpy(), np.uint8)


def set_table_content(table: Any, content: np.ndarray[Any, Any]) -> None:
    """Replace the content of a mutable hash table by that from `table_content`."""
    keys, values = tf.unstack(tf.io.parse_tensor(content.tobytes(), tf.string))
    table.remove(_exported(table)[0])
    table.insert(
        tf.io.parse_tensor(keys, table.key_dtype), tf.io.parse_tensor(values, table.value_dtype)
    )


def has_slots(optimizer: Any) -> bool:
    """Return whether an optimizer has created its variables."""
    if hasattr(optimizer, "built"):
        return bool(optimizer.built)
    inner = innermost(optimizer)
    # tf-keras' legacy ones have no build.
    return bool(getattr(inner, "_built", not hasattr(inner, "build")))


def when_built(optimizer: Any, model: Any, then: Callable[[], None]) -> None:
    """Call ``then`` once, as soon as a model's optimizer has created its variables."""
    if not hasattr(optimizer, "build"):  # tf-keras' legacy ones
        optimizer._create_all_weights(model.trainable_variables)
    averages = getattr(getattr(optimizer, "inner_optimizer", optimizer), "use_ema", False)
    if averages and is_kerases(model.train_step) and not has_slots(optimizer):
        # Callbacks swap the averages before a first step. A step of the script may train others.
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)
    if has_slots(optimizer):
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
    return getattr(model, "optimizer", None), getattr(model, _loss_and_metrics(model)[0], None)


def _loss_and_metrics(model: Any) -> tuple[str, str]:
    if _is_tf_keras(model):
        return "compiled_loss", "compiled_metrics"
    return "_compile_loss", "_compile_metrics"


def built_parts(model: Any) -> list[str]:
    """Return which of the loss and the metrics of ``compile`` a step has used by now."""
    # ``fit`` shows those that are built, whatever the script's step returns.
    names = _loss_and_metrics(model)
    return [name for name in names if getattr(getattr(model, name, None), "built", False)]


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of metrics that ``fit`` resets each epoch."""
    found = [variable for metric in model.metrics for variable in metric.variables]
    return list({id(variable): variable for variable in found}.values())


def count_steps(model: Any, steps: int) -> None:
    """Set tf-keras' step counter of a ``fit``, which its callbacks use."""
    counter = getattr(model, "_train_counter", None)
    if counter is not None:
        counter.assign(steps)


def may_take_other_data(model: Any) -> bool:
    """Return whether a step of the script may give other data to a model, or to its parts."""
    return not is_kerases(model.train_step) and bool(model.trainable_variables)


def build_symbolically(model: Any, batch: Any) -> None:
    """Build a model of Keras 3, its metrics and optimizer, from a batch that it may not take."""
    try:
        model._symbolic_build(data_batch=batch)
    except (RuntimeError, ValueError):
        if not may_take_other_data(model):
            raise
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)


def build_metrics(keras: Any, model: Any, spec: Any, parts: Collection[str]) -> None:
    """Create the variables of some `built_parts`, which Keras creates in a model's first step."""
    if not all(isinstance(found, tf.TensorSpec) for found in tf.nest.flatten(spec)):
        return
    with model.distribute_strategy.scope():
        if keras.__name__ == "keras":
            others = [
                getattr(model, each) for each in _loss_and_metrics(model) if each not in parts
            ]
            with contextlib.ExitStack() as left:
                # Keras would build it; the step may give it other variables.
                for each in (*others, getattr(model, "optimizer", None)):
                    if each is not None and not each.built:
                        left.enter_context(replaced(each, built=True))
                build_symbolically(model, spec)
            return
        x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
        if y is None:
            return

        def look(*batch: Any) -> Any:
            build_tf_keras_metrics(model, *batch, parts=parts)
            return batch

        tf.function(look).get_concrete_function(x, y)


def build_tf_keras_metrics(
    model: Any, x: Any, y: Any, *, parts: Collection[str] | None = None
) -> None:
    """Build the layers, loss and metrics of a model of tf-keras, from a batch."""
    predicted = model(x, training=False)
    parts = _loss_and_metrics(model) if parts is None else parts
    loss = getattr(model, "compiled_loss", None)
    if "compiled_loss" in parts and loss is not None and not loss.built:
        loss.build(predicted)
    metrics = getattr(model, "compiled_metrics", None)
    if "compiled_metrics" in parts and metrics is not None and not metrics.built:
        metrics.build(predicted, metrics._conform_to_outputs(predicted, y))


def is_building_metrics() -> bool:
    """Return whether Keras is building a compiled model's metrics, in its first step."""
    codes = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return any(
        code.co_name == "build" and code.co_filename.endswith(_BUILDS_METRICS) for code in codes
    )


def _tf_keras_generators(model: Any) -> Iterator[tuple[str, Any]]:
    for number, layer in enumerate(model._flatten_layers()):
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            yield f"layer-{number}", generator.state


def _is_tf_keras(model: Any) -> bool:
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)
