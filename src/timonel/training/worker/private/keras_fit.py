"""Private names of TensorFlow and Keras that distributed ``fit`` relies on.

Keras 3's ``fit`` fails under MultiWorkerMirroredStrategy in two places: the symbolic build gets a
batch that is still distributed over replicas, and step results of rank 0 are gathered along an axis
that they do not have. Both are replaced. A test calls `missing_names` and pins the signatures, so
that an incompatible release fails there and not in a user's job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.ps_values import AggregatingVariable
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.eager import context
from tensorflow.python.framework import config, ops

from timonel.errors import TimonelError
from timonel.training.cluster import Cluster
from timonel.training.worker.private import replica_steps

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
    """Keep the strategy's scope when ``clear_session`` replaces the default graph, permanently.

    The graph holds the scopes, so that later models would train without the strategy.

    Args:
        again: Called after each replacement, to set again what else ``clear_session`` resets.
    """
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
    """Let ``float(variable)`` and ``int(variable)`` read a distributed variable, permanently."""
    for kind in (float, int, complex):
        setattr(DistributedVariable, f"__{kind.__name__}__", _reading(kind))


def _reading(kind: type) -> Callable[[Any], Any]:
    return lambda variable: kind(variable.numpy())


def require_supported(flavour: str, version: str) -> None:
    """Check that distributed ``fit`` was verified with this release of Keras.

    Raises:
        TimonelError: The release is not supported.
    """
    supported = SUPPORTED_KERAS if flavour == "keras" else SUPPORTED_TF_KERAS
    if ".".join(version.split(".")[:2]) not in supported:
        raise TimonelError(
            f"distributed training supports {flavour} {' or '.join(supported)}, got {version}",
            hint=f"pip install '{flavour.replace('_', '-')}=={supported[-1]}.*', or use one worker "
            "with one device",
        )


def missing_names() -> list[str]:
    """Return the private names of Keras 3 that are missing."""
    from keras.src.backend.tensorflow import core, trainer  # noqa: PLC0415 - tf-keras may be in use

    owner = trainer.TensorFlowTrainer
    required = {
        "reduce_per_replica": trainer,
        "_maybe_symbolic_build": owner,
        "_symbolic_build": owner,
        "_get_metrics_result_or_logs": owner,
        "assign_add": core.Variable,
        "_direct_assign": core.Variable,
        "_convert_to_tensor": core.Variable,
    }
    return [name for name, holder in required.items() if not hasattr(holder, name)]


def install_keras_hooks() -> None:
    """Make Keras 3's fit, evaluate and predict work with several replicas. Idempotent."""
    from keras.src.backend.tensorflow import trainer  # noqa: PLC0415 - TensorFlow loads here

    if getattr(trainer.reduce_per_replica, "is_timonels", False):
        return
    owner = trainer.TensorFlowTrainer
    owner._maybe_symbolic_build = _build_from_local_batch
    owner._get_metrics_result_or_logs = _with_results_of_all(owner._get_metrics_result_or_logs)
    trainer.reduce_per_replica = _with_mean_over_workers(trainer.reduce_per_replica)


def fix_shared_metrics() -> None:
    """Make replicas add only increments to shared variables. Idempotent.

    Under CentralStorageStrategy, all replicas share one copy of each variable, and TensorFlow sums
    or averages their assignments. Keras 3 adds to a variable by assigning its value plus the
    increment, so two replicas double a metric's total at every step. Metrics were wrong from the
    second step on, and infinite after 128.
    """
    from keras.src.backend.tensorflow import core  # noqa: PLC0415 - TensorFlow loads here

    original = core.Variable.assign_add
    if getattr(original, "is_timonels", False):
        return

    @functools.wraps(original)
    def assign_add(variable: Any, value: Any) -> Any:
        if not isinstance(variable.value, AggregatingVariable):
            return original(variable, value)
        variable.value.assign_add(variable._convert_to_tensor(value, dtype=variable.dtype))
        return variable.value

    assign_add.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    core.Variable.assign_add = assign_add


def is_deterministic() -> bool:
    """Whether TensorFlow uses only deterministic operations."""
    return bool(config.is_op_determinism_enabled())


def _build_from_local_batch(model: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Build model, metrics and optimizer from one local replica's batch."""
    import keras  # noqa: PLC0415 - tf-keras may be in use

    strategy = model._distribute_strategy
    if strategy is None or type(model).call is keras.Model.call:
        return  # a model without call(), such as a GAN: its parts are built models
    if iterator is not None:
        data_batch = _first_local_batch(strategy, iterator)
    with strategy.scope():
        model._symbolic_build(data_batch=data_batch)


def _first_local_batch(strategy: Any, epoch_iterator: Any) -> Any:
    import keras  # noqa: PLC0415 - tf-keras may be in use

    for _, _, iterator in epoch_iterator:
        local = keras.tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], next(iterator)
        )
        return replica_steps.with_a_row(local)
    return None


def _with_results_of_all(original: Any) -> Any:
    """Use metric results over all replicas as logs.

    Only if the logs, also nested, are these results.
    """

    def results_or_logs(model: Any, logs: Any) -> Any:
        results = model.get_metrics_result()
        if isinstance(logs, Mapping) and set(_flat_names(logs)) == set(results):
            return results
        return original(model, logs)

    return results_or_logs


def _flat_names(logs: Mapping[str, Any]) -> Iterator[str]:
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _flat_names(value)
        else:
            yield name


def _with_mean_over_workers(original: Any) -> Any:
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        several_workers = strategy.extended._in_multi_worker_mode()
        if several_workers and reduction in {"auto", "mean"}:
            return _mean(values, strategy)
        return original(values, strategy, reduction)

    reduce_per_replica.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    return reduce_per_replica


def _mean(values: Any, strategy: Any) -> Any:
    """Return the mean of each value over all replicas.

    Scalars, such as losses and metrics, share one message per step instead of one each.
    """
    if not isinstance(values, Mapping):
        return _mean_of_each(values, strategy)
    scalars = [name for name, value in values.items() if _is_scalar(value, strategy)]
    if len(scalars) < 2:
        return _mean_of_each(values, strategy)
    together = _mean_together([values[name] for name in scalars], strategy)
    others = {name: value for name, value in values.items() if name not in scalars}
    reduced = {**dict(zip(scalars, together, strict=True)), **_mean_of_each(others, strategy)}
    return {name: reduced[name] for name in values}


def _mean_of_each(values: Any, strategy: Any) -> Any:
    import keras  # noqa: PLC0415 - tf-keras may be in use

    return keras.tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)


def _mean_together(values: list[Any], strategy: Any) -> list[Any]:
    stacked = strategy.run(tf.stack, args=(values,))
    return list(tf.unstack(strategy.reduce("MEAN", stacked, axis=None), num=len(values)))


def _is_scalar(value: Any, strategy: Any) -> bool:
    locals_ = strategy.experimental_local_results(value)
    return all(
        getattr(local, "shape", None) == () and getattr(local, "dtype", None) == "float32"
        for local in locals_
    )
