"""Devices, memory and threads of a process, set before TensorFlow initialises."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timonel.errors import SpecError, TimonelError
from timonel.units import format_bytes

_MIN_INTER_OP = 2
"""A collective waits inside an op: another op must be able to run meanwhile."""

_CGROUP = Path("/sys/fs/cgroup")
_TPU_VARIABLES = ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Place:
    """A process among those of its job.

    Attributes:
        number: Its place among the processes on its host.
        neighbours: How many these are.
        several_workers: Whether it trains together with other processes.
    """

    number: int = 0
    neighbours: int = 1
    several_workers: bool = False


@dataclass(frozen=True)
class Granted:
    """What a process got of its host.

    Attributes:
        kind: ``GPU`` or ``CPU``.
        names: Its devices.
        threads: Threads that it computes with.
        memory: Of each GPU, in words.
    """

    kind: str
    names: tuple[str, ...]
    threads: int
    memory: str | None = None

    def record(self) -> dict[str, Any]:
        """Return this as the run's record holds it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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


def usable_cores(root: Path = _CGROUP) -> float:
    """Return how many cores this process may use: its affinity, less what its control group takes.

    TensorFlow looks at the affinity only, and starts a thread for each core of the machine in a
    container that was given two.
    """
    present = len(os.sched_getaffinity(0))
    for read in (_quota_v2, _quota_v1):
        try:
            quota = read(root)
        except (OSError, ValueError):
            continue
        return present if quota is None else min(present, quota)
    return present


def threads(cores: float, neighbours: int, wanted: int | None = None) -> int:
    """Return how many threads a process computes with.

    Args:
        cores: How many cores this process may use.
        neighbours: How many processes of the job share them.
        wanted: What the user asked for.
    """
    return wanted or max(1, math.floor(cores / neighbours))


def tpu_address(environ: Mapping[str, str] = os.environ, device_dir: Path = Path("/dev")) -> Any:
    """Return what names this machine's TPU to TensorFlow, ``local`` for one that is built in.

    Returns:
        None where there is none. TensorFlow's own search would wait for a network's answer.
    """
    named = next((environ[name] for name in _TPU_VARIABLES if environ.get(name)), None)
    return named or ("local" if (device_dir / "accel0").exists() else None)


def configure(
    place: Place, *, per_worker: int, memory: int | None, wanted_threads: int | None
) -> Granted:
    """Configure TensorFlow's devices, memory and threads in this process.

    Without a GPU, ``per_worker`` logical CPU devices stand in for them.

    Args:
        place: The process among those of its job.
        per_worker: Devices that it takes.
        memory: The most bytes of each GPU; None lets it grow as needed.
        wanted_threads: Threads to compute with; None shares the cores.

    Raises:
        SpecError: There are too few GPUs, or CPUs were asked to do what only GPUs can.
        TimonelError: TensorFlow is initialised already.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    count = threads(usable_cores(), place.neighbours, wanted_threads)
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        _check_cpu(place, per_worker, memory)
    try:
        _set_threads(tf, count, place.neighbours, is_wanted=wanted_threads is not None)
        # What a script places on a device that is not there, or that has no such operation, runs
        # on another.
        tf.config.set_soft_device_placement(True)
        if gpus:
            return _take_gpus(tf, gpus, place, per_worker, memory, count)
        return _take_cpu(tf, per_worker, count)
    except RuntimeError as error:
        raise TimonelError(
            f"expected TensorFlow not to be initialised yet, but {error}",
            hint="something that is imported before the job starts has run an operation",
        ) from None


def configure_evaluator(place: Place, *, per_worker: int, wanted_threads: int | None) -> Granted:
    """Configure TensorFlow's devices and threads in a process that evaluates beside training.

    Of the host's GPUs it takes the last one if the trainers leave any, else none.

    Args:
        place: The trainers of this host.
        per_worker: Devices that each of them takes.
        wanted_threads: Threads to compute with; None shares the cores with the trainers.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    count = threads(usable_cores(), place.neighbours + 1, wanted_threads)
    _set_threads(tf, count, place.neighbours + 1, is_wanted=wanted_threads is not None)
    tf.config.set_soft_device_placement(True)
    spare = tf.config.list_physical_devices("GPU")[per_worker * place.neighbours :][-1:]
    tf.config.set_visible_devices(spare, "GPU")
    for gpu in spare:
        tf.config.experimental.set_memory_growth(gpu, True)
    if spare:
        return Granted("GPU", tuple(gpu.name for gpu in spare), count, "grows as needed")
    # A script may place layers on the devices by name.
    return _take_cpu(tf, per_worker, count)


def _take_gpus(
    tf: Any, gpus: Sequence[Any], place: Place, per_worker: int, memory: int | None, count: int
) -> Granted:
    numbers = deal(
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
    return Granted("GPU", tuple(gpu.name for gpu in mine), count, words)


def _check_cpu(place: Place, per_worker: int, memory: int | None) -> None:
    """Check that nothing is asked of a CPU that only GPUs can."""
    if memory is not None:
        raise SpecError(
            f"expected a GPU whose memory can be limited to {format_bytes(memory)}, found none",
            hint="leave out --memory-per-device: TensorFlow has no limit for a CPU's memory",
        )
    if per_worker > 1 and place.several_workers:
        raise SpecError(
            f"expected one device for each of several workers without GPUs, got {per_worker}",
            hint="MultiWorkerMirroredStrategy uses one CPU per process: leave out "
            "--devices-per-worker",
        )


def _take_cpu(tf: Any, per_worker: int, count: int) -> Granted:
    if per_worker > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(per_worker)]
        tf.config.set_logical_device_configuration(cpu, parts)
    return Granted("CPU", tuple(f"CPU:{number}" for number in range(per_worker)), count)


def _set_threads(tf: Any, count: int, neighbours: int, *, is_wanted: bool) -> None:
    for name in _THREAD_VARIABLES:
        # For libraries that the script loads beside TensorFlow.
        if neighbours > 1 or is_wanted:
            os.environ.setdefault(name, str(count))
    if "TF_NUM_INTRAOP_THREADS" in os.environ and not is_wanted:
        return
    if is_wanted or count != len(os.sched_getaffinity(0)):
        tf.config.threading.set_intra_op_parallelism_threads(count)
        tf.config.threading.set_inter_op_parallelism_threads(max(count, _MIN_INTER_OP))


def _quota_v2(root: Path) -> float | None:
    quota, period = (root / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(root: Path) -> float | None:
    quota = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((root / "cpu" / "cpu.cfs_period_us").read_text())
