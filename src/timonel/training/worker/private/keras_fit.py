"""Private names of TensorFlow and Keras that distributed ``fit`` relies on.

Keras 3's ``fit`` fails under MultiWorkerMirroredStrategy in two places: the symbolic build gets a
batch that is still distributed over replicas, and step results of rank 0 are gathered along an axis
that they do not have. Both are replaced. A test pins the names and signatures, so that an
incompatible release fails there and not in a user's job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.ps_values import AggregatingVariable
from tensorflow.python.distribute.values import DistributedDelegate
from tensorflow.python.eager import context
from tensorflow.python.framework import config, ops

from timonel.errors import TimonelError
from timonel.models.keras_model import is_without_call
from timonel.training.cluster import Cluster
from timonel.training.worker.private import hidden_state, replica_steps
from timonel.training.worker.private.attributes import wrap

SUPPORTED_KERAS = ("3.15",)
SUPPORTED_TF_KERAS = ("2.21",)

HEARTBEAT_TIMEOUT_MS = 5000
"""Approximate time to detect a hung task; TensorFlow's default took 8.6 s."""


def configure_coordination(cluster: Cluster) -> None:
    """Configure the coordination service to detect hung peers early."""
    role, index = cluster.leader
    jobs = [
        context.coordination_config_pb2.CoordinatedJob(name=name, num_tasks=len(addresses))
        for name, addresses in cluster.tasks.items()
        if name in {"chief", "worker"}
    ]
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{role}/replica:0/task:{index}",
        coordinated_jobs=jobs,
        heartbeat_timeout_in_ms=HEARTBEAT_TIMEOUT_MS,
    )


def keep_scope_when_cleared(again: Callable[[], object]) -> None:
    """Keep the strategy's scope when ``clear_session`` replaces the default graph, permanently."""
    # The graph holds the scopes, so that later models would train without the strategy. ``again``
    # is called after each replacement, to set again what else ``clear_session`` resets.
    graphs = ops._default_graph_stack
    original = graphs.reset

    def reset() -> None:
        before = ops.get_default_graph()
        original()
        after = ops.get_default_graph()
        after._distribution_strategy_stack = list(before._distribution_strategy_stack)
        after._variable_creator_stack = list(before._variable_creator_stack)
        again()

    graphs.reset = reset


def make_variables_numbers() -> None:
    """Let Python and NumPy read distributed variables and results of assignments, permanently."""
    for kind in (float, int, complex):
        name = f"__{kind.__name__}__"
        read = lambda value, kind=kind: kind(tf.convert_to_tensor(value))  # noqa: E731
        setattr(DistributedDelegate, name, read)

    def array(value: Any, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(tf.convert_to_tensor(value), dtype, copy=copy)

    DistributedDelegate.__array__ = array


def require_supported(flavour: str, version: str) -> None:
    """Check that distributed ``fit`` was verified with this release of Keras."""
    supported = SUPPORTED_KERAS if flavour == "keras" else SUPPORTED_TF_KERAS
    if ".".join(version.split(".")[:2]) not in supported:
        raise TimonelError(
            f"distributed training supports {flavour} {' or '.join(supported)}, got {version}",
            hint=f"pip install '{flavour.replace('_', '-')}=={supported[-1]}.*', or use one worker "
            "with one device",
        )


def install_keras_hooks() -> None:
    """Make Keras 3's fit, evaluate and predict work with several replicas. Idempotent."""
    from keras.src.backend.tensorflow import trainer  # noqa: PLC0415 - TensorFlow loads here
    from keras.src.trainers import compile_utils  # noqa: PLC0415

    owner = trainer.TensorFlowTrainer
    wrap(owner, "_maybe_symbolic_build", _build_from_local_batch)
    wrap(trainer, "reduce_per_replica", _with_mean_over_workers)
    wrap(compile_utils.CompileMetrics, "build", _outside_step)
    wrap(compile_utils.CompileLoss, "build", _outside_step)


def fix_shared_metrics() -> None:
    """Make replicas add only increments to shared variables. Idempotent."""
    # Under CentralStorageStrategy, all replicas share one copy of each variable, and TensorFlow
    # sums or averages their assignments. Keras 3 adds to a variable by assigning its value plus the
    # increment, so two replicas double a metric's total at every step.
    from keras.src.backend.tensorflow import core  # noqa: PLC0415 - TensorFlow loads here

    def assign_add(original: Callable[..., Any], variable: Any, value: Any) -> Any:
        if not isinstance(variable.value, AggregatingVariable):
            return original(variable, value)
        variable.value.assign_add(variable._convert_to_tensor(value, dtype=variable.dtype))
        return variable.value

    wrap(core.Variable, "assign_add", assign_add)


def is_deterministic() -> bool:
    """Whether TensorFlow uses only deterministic operations."""
    return bool(config.is_op_determinism_enabled())


def _outside_step(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Create variables outside the step's graph, as several devices fail to do so in a step."""
    with tf.init_scope():
        return original(self, *args, **kwargs)


def _build_from_local_batch(
    _original: object, model: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    """Build model, metrics and optimizer from what one local replica's batches are."""
    strategy = model._distribute_strategy
    if strategy is None or is_without_call(model):
        return  # a model without call(), such as a GAN: its parts are built models
    if iterator is not None:
        data_batch = _local_batch(strategy, iterator)
    with strategy.scope():
        hidden_state.build_symbolically(model, data_batch)


def _local_batch(strategy: Any, epoch_iterator: Any) -> Any:
    """Return the specification of the batches, or the first one if that has no known ranks."""
    import keras  # noqa: PLC0415 - tf-keras may be in use

    # Reading a batch begins a pass, after which a shuffled pipeline has the order of the next one.
    spec = keras.tree.map_structure(
        lambda each: getattr(each, "_value_specs", (each,))[0],
        epoch_iterator._distributed_dataset.element_spec,
    )
    if all(isinstance(each, tf.TensorSpec) and each.shape.rank for each in tf.nest.flatten(spec)):
        return spec
    for _, _, iterator in epoch_iterator:
        local = keras.tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], next(iterator)
        )
        return replica_steps.with_a_row(local)
    return None


def _with_mean_over_workers(
    original: Callable[..., Any], values: Any, strategy: Any, reduction: str
) -> Any:
    several_workers = strategy.extended._in_multi_worker_mode()
    if several_workers and reduction in {"auto", "mean"}:
        return _mean(values, strategy)
    if several_workers and tf.executing_eagerly():  # where TensorFlow cannot gather
        return _traced(original, strategy, reduction).get_concrete_function(values)(values)
    return original(values, strategy, reduction)


@functools.cache
def _traced(original: Callable[..., Any], strategy: Any, reduction: str) -> Any:
    return tf.function(lambda values: original(values, strategy, reduction))


def _mean(values: Any, strategy: Any) -> Any:
    """Return the mean of each value over all replicas; scalars share one message per step."""
    import keras  # noqa: PLC0415 - tf-keras may be in use

    flat = keras.tree.flatten(values)
    scalars = [value for value in flat if _is_scalar(value, strategy)]
    means = iter(())
    if scalars:
        stacked = strategy.run(tf.stack, args=(scalars,))
        mean = strategy.reduce("MEAN", stacked, axis=None)
        means = iter(tf.unstack(mean, num=len(scalars)))
    found = [
        next(means) if _is_scalar(value, strategy) else strategy.reduce("MEAN", value, axis=None)
        for value in flat
    ]
    return keras.tree.pack_sequence_as(values, found)


def _is_scalar(value: Any, strategy: Any) -> bool:
    locals_ = strategy.experimental_local_results(value)
    return all(
        getattr(local, "shape", None) == () and getattr(local, "dtype", None) == "float32"
        for local in locals_
    )


def policy_of(keras: Any) -> str:
    """Return the name of the precision policy for new layers."""
    if keras.__name__ == "tf_keras":
        return str(keras.mixed_precision.global_policy().name)
    from keras.src.backend.common import global_state  # noqa: PLC0415 - TensorFlow loads here

    # Keras' own function sets a policy from `floatx`, which then has no effect any more.
    policy = global_state.get_global_attribute("dtype_policy", None)
    return str(keras.config.floatx() if policy is None else policy.name)


def policies_in(model: Any) -> str:
    """Return the names of the precision policies of the layers that compute."""
    names = {
        each.dtype_policy.name
        for each in model._flatten_layers()
        # Inputs of mixed precision are float32, and compute nothing.
        if type(each).__name__ != "InputLayer" and getattr(each, "dtype_policy", None)
    }
    return ", ".join(sorted(names))
