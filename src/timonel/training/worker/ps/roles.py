"""Cluster setup for parameter servers: the servers, the strategy, and its coordinator."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from timonel.storage import write_text
from timonel.training.cluster import Cluster
from timonel.training.worker import heartbeat
from timonel.training.worker.fit.agreement import TaskAction
from timonel.training.worker.private import ps_variables
from timonel.training.worker.private.attributes import replaced, wrap
from timonel.training.worker.termination import Termination

logger = logging.getLogger(__name__)

_CHIEFS_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"


_ALONE_S = 1.0
"""Maximum time until the second SIGTERM if a whole job stops."""
_POLL_S = 0.5


def run(task: Any, termination: Termination) -> None:
    """Run a worker or a parameter server until SIGTERM."""
    termination.install()
    cluster: Cluster = task.cluster
    if cluster.role == "ps":
        with contextlib.suppress(RuntimeError):  # already initialized: the task has no GPU
            tf.config.set_visible_devices([], "GPU")
    # Operations that wait for another task each hold a thread. TensorFlow has one thread per core,
    # so on a machine with few cores all threads would wait.
    tasks = sum(map(len, cluster.tasks.values()))
    threads = max(len(os.sched_getaffinity(0)), tasks + 1)
    server = tf.distribute.Server(
        spec_of(cluster),
        job_name=cluster.role,
        task_index=cluster.index,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads),
    )
    heartbeat.begin(task.task_dir)
    logger.info("serving at %s", server.target)
    # A worker exits at once, as its work is computed again. A parameter server waits until the
    # chief has saved its variables.
    if cluster.role == "ps":
        leave_after_saving(termination, task.job_dir / "requests")
    threading.Event().wait()


def leave_after_saving(
    termination: Termination, requests: Path, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait for SIGTERM; let the chief save before only this process exits."""
    # The chief needs this server's variables to save them. It then exits, which also ends this
    # process; otherwise the patience of ``termination`` does.
    asked: list[bool] = []
    with termination.deferred(lambda: asked.append(True)):
        while not asked:
            sleep(_POLL_S)
        sleep(_ALONE_S)
        logger.info("asked to leave: the chief saves first")
        write_text(requests / TaskAction.LEAVE.value, "")
        while True:
            sleep(_POLL_S)


def strategy_for(cluster: Cluster) -> Any:
    """Return a cluster's ParameterServerStrategy, with its ClusterCoordinator."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec_of(cluster), task_type=cluster.role, task_id=cluster.index, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    tf.distribute.coordinator.ClusterCoordinator(strategy)
    # Scalars stay with the chief, which needs them at each step. Parameter servers cannot read each
    # other's variables: TensorFlow connects them only to workers and the chief.
    ps_variables.place_variables(
        strategy, lambda shape: shape.rank == 0 or _placing.is_local, _CHIEFS_DEVICE
    )
    return strategy


def spec_of(cluster: Cluster) -> Any:
    """Return the cluster as a ``tf.train.ClusterSpec``."""
    return tf.train.ClusterSpec({role: list(found) for role, found in cluster.tasks.items()})


def keep_metrics_local(keras: Any) -> None:
    """Create the variables of metrics in the chief, their only reader and writer."""
    for name in ("add_weight", "add_variable"):
        if hasattr(keras.metrics.Metric, name):
            wrap(keras.metrics.Metric, name, _locally)


_placing = SimpleNamespace(is_local=False)  # variables that are created now: in the chief


def _locally(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _local_variables():
        variable = original(*args, **kwargs)
    ps_variables.make_later_within(variable, _local_variables)
    return variable


def _local_variables() -> contextlib.AbstractContextManager[None]:
    return replaced(_placing, is_local=True)
