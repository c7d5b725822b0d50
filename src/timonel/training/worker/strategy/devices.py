"""Devices, memory and threads of a process, set before TensorFlow is initialized."""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timonel.errors import SpecError, TimonelError
from timonel.processes.cores import usable_cores
from timonel.training.worker.private.attributes import wrap
from timonel.units import format_bytes

logger = logging.getLogger(__name__)

_MIN_INTER_OP = 2
"""Least inter-op threads: a collective blocks in an op, and another must be able to run."""

_TPU_VARIABLES = ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class HostPosition:
    """A process's position among those of its job."""

    number: int = 0  # index among the processes on its host
    neighbours: int = 1  # number of processes on its host
    several_workers: bool = False  # it trains together with other processes


@dataclass(frozen=True)
class DeviceResources:
    """Host resources assigned to a process."""

    kind: str  # ``GPU`` or ``CPU``
    names: tuple[str, ...]
    threads: int  # for computing
    memory: str | None = None  # of each GPU, as text

    def record(self) -> dict[str, Any]:
        """Return the fields for the run's record."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def assign_gpus(count: int, *, per_worker: int, place: int, neighbours: int) -> range:
    """Return the numbers of the GPUs assigned to the process at a place among its neighbours."""
    if count < per_worker * neighbours:
        raise SpecError(
            f"{neighbours} processes need {per_worker * neighbours} GPUs, this machine has {count}",
            hint="use fewer workers or devices, or set CUDA_VISIBLE_DEVICES= to train on CPUs",
        )
    return range(place * per_worker, (place + 1) * per_worker)


def threads(cores: float, neighbours: int, requested: int | None = None) -> int:
    """Return the number of compute threads for one of the neighbours that share cores."""
    return requested or max(1, math.floor(cores / neighbours))


def tpu_address(environ: Mapping[str, str] = os.environ, device_dir: Path = Path("/dev")) -> Any:
    """Return the address of this machine's TPU, ``local`` for a built-in one, None without."""
    # TensorFlow's own search would wait for a network response.
    named = next((environ[name] for name in _TPU_VARIABLES if environ.get(name)), None)
    return named or ("local" if (device_dir / "accel0").exists() else None)


def configure(
    place: HostPosition, *, per_worker: int, memory: int | None, requested_threads: int | None
) -> DeviceResources:
    """Configure TensorFlow's devices, memory and threads in this process, before it starts.

    Without a GPU, ``per_worker`` logical CPU devices replace them. ``memory`` is the maximum of
    each GPU in bytes; None lets it grow as needed.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    count = threads(usable_cores(), place.neighbours, requested_threads)
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        _check_cpu(place, per_worker, memory)
    try:
        _set_threads(tf, count, place.neighbours, is_requested=requested_threads is not None)
        # Operations placed on a missing or unsuitable device run on another one.
        tf.config.set_soft_device_placement(True)
        if gpus:
            return _take_gpus(tf, gpus, place, per_worker, memory, count)
        return _take_cpu(tf, per_worker, count)
    except RuntimeError as error:
        raise TimonelError(
            f"TensorFlow was initialized before the job could configure its devices: {error}",
            hint="do not run TensorFlow operations when a module is imported",
        ) from None


def keep_configuration() -> None:
    """Handle calls of ``tf.config`` in the script, as TensorFlow is initialized; permanently."""
    # Other threads or memory do not change what is trained, so they only cause a warning; other
    # devices raise a SpecError.
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    threads = ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads")
    experimental = tf.config.experimental
    for owner, names, is_error in (
        (tf.config.threading, threads, False),
        (experimental, ("set_memory_growth",), False),
        (tf.config, ("set_logical_device_configuration", "set_visible_devices"), True),
        (experimental, ("set_virtual_device_configuration", "set_visible_devices"), True),
    ):
        for name in names:
            wrap(owner, name, functools.partial(_kept, is_error))


def _kept(is_error: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wrap a function of ``tf.config`` that raises RuntimeError once TensorFlow is initialized."""
    try:
        return original(*args, **kwargs)
    except RuntimeError:
        if is_error:
            raise SpecError(
                f"the script calls {original.__name__}, but the job has assigned the devices",
                hint="remove the call and train with --devices-per-worker N, or let the script "
                "distribute itself with --strategy none and one worker",
            ) from None
        logger.warning(
            "%s in the script has no effect: the job has started TensorFlow's devices; use "
            "--threads or --memory-per-device",
            original.__name__,
        )
        return None


def configure_evaluator(
    place: HostPosition, *, per_worker: int, requested_threads: int | None
) -> DeviceResources:
    """Configure TensorFlow's devices and threads in an evaluator process.

    It uses the host's last GPU if the trainers leave any, else none; and it shares the cores with
    them. ``place`` and ``per_worker`` are those of the trainers on this host.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    count = threads(usable_cores(), place.neighbours + 1, requested_threads)
    _set_threads(tf, count, place.neighbours + 1, is_requested=requested_threads is not None)
    tf.config.set_soft_device_placement(True)
    spare = tf.config.list_physical_devices("GPU")[per_worker * place.neighbours :][-1:]
    tf.config.set_visible_devices(spare, "GPU")
    for gpu in spare:
        tf.config.experimental.set_memory_growth(gpu, True)
    if spare:
        return DeviceResources("GPU", tuple(gpu.name for gpu in spare), count, "grows as needed")
    # A script may place layers on the devices by name.
    return _take_cpu(tf, per_worker, count)


def _take_gpus(
    tf: Any,
    gpus: Sequence[Any],
    place: HostPosition,
    per_worker: int,
    memory: int | None,
    count: int,
) -> DeviceResources:
    numbers = assign_gpus(
        len(gpus), per_worker=per_worker, place=place.number, neighbours=place.neighbours
    )
    mine = [gpus[number] for number in numbers]
    tf.config.set_visible_devices(mine, "GPU")
    for gpu in mine:
        if memory is None:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            part = tf.config.LogicalDeviceConfiguration(memory_limit=memory // 2**20)
            tf.config.set_logical_device_configuration(gpu, [part])
    words = "grows as needed" if memory is None else f"at most {format_bytes(memory)}"
    return DeviceResources("GPU", tuple(gpu.name for gpu in mine), count, words)


def _check_cpu(place: HostPosition, per_worker: int, memory: int | None) -> None:
    """Check that the options need no GPU."""
    if memory is not None:
        raise SpecError(
            f"cannot limit device memory to {format_bytes(memory)}: this machine has no GPU",
            hint="drop --memory-per-device: TensorFlow cannot limit a CPU's memory",
        )
    if per_worker > 1 and place.several_workers:
        raise SpecError(
            f"several workers without GPUs use one device each, got {per_worker}",
            hint="MultiWorkerMirroredStrategy uses one CPU per process: drop --devices-per-worker",
        )


def _take_cpu(tf: Any, per_worker: int, count: int) -> DeviceResources:
    if per_worker > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(per_worker)]
        tf.config.set_logical_device_configuration(cpu, parts)
    return DeviceResources("CPU", tuple(f"CPU:{number}" for number in range(per_worker)), count)


def _set_threads(tf: Any, count: int, neighbours: int, *, is_requested: bool) -> None:
    for name in _THREAD_VARIABLES:
        # For other libraries that the script loads.
        if neighbours > 1 or is_requested:
            os.environ.setdefault(name, str(count))
    if "TF_NUM_INTRAOP_THREADS" in os.environ and not is_requested:
        return
    if is_requested or count != len(os.sched_getaffinity(0)) or count < _MIN_INTER_OP:
        tf.config.threading.set_intra_op_parallelism_threads(count)
        tf.config.threading.set_inter_op_parallelism_threads(max(count, _MIN_INTER_OP))
