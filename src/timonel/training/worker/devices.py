"""Devices and threads of a process, set before TensorFlow initialises."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from timonel.errors import SpecError

_MIN_INTER_OP = 2
"""A collective waits inside an op: another op must be able to run meanwhile."""


def deal(count: int, *, per_worker: int, place: int, neighbours: int) -> range:
    """Return the numbers of the GPUs that a process gets.

    Args:
        count: How many GPUs the host has.
        per_worker: How many each process wants.
        place: The process's place among those on its host.
        neighbours: How many processes there are on its host.

    Raises:
        SpecError: There are not enough for all.
    """
    if count < per_worker * neighbours:
        raise SpecError(
            f"expected {per_worker * neighbours} GPUs for {neighbours} processes, found {count}",
            hint="use fewer workers or devices, or set CUDA_VISIBLE_DEVICES= to train on CPUs",
        )
    return range(place * per_worker, (place + 1) * per_worker)


def threads(cores: int, neighbours: int) -> int | None:
    """Return how many threads a process should compute with; None leaves it to TensorFlow.

    Args:
        cores: How many cores this process may use.
        neighbours: How many processes of the job share them.
    """
    return None if neighbours <= 1 else max(1, cores // neighbours)


def configure(*, per_worker: int, place: int, neighbours: int, several_workers: bool) -> None:
    """Configure TensorFlow's devices and threads in this process.

    Without a GPU, ``per_worker`` logical CPU devices stand in for them.

    Raises:
        SpecError: There are too few GPUs, or CPUs were asked to do what only GPUs can.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        numbers = deal(len(gpus), per_worker=per_worker, place=place, neighbours=neighbours)
        _use_gpus(tf, [gpus[number] for number in numbers])
    elif per_worker > 1:
        _split_cpu(tf, per_worker, several_workers=several_workers)
    count = threads(len(os.sched_getaffinity(0)), neighbours)
    if count is not None:
        tf.config.threading.set_intra_op_parallelism_threads(count)
        tf.config.threading.set_inter_op_parallelism_threads(max(count, _MIN_INTER_OP))


def _use_gpus(tf: Any, gpus: Sequence[Any]) -> None:
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def _split_cpu(tf: Any, count: int, *, several_workers: bool) -> None:
    if several_workers:
        raise SpecError(
            f"expected one device for each of several workers without GPUs, got {count}",
            hint="MultiWorkerMirroredStrategy uses one CPU per process: leave out "
            "--devices-per-worker",
        )
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(cpu, parts)
