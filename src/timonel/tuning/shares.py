"""Shares of a machine's CPU cores and GPUs for parallel trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

GPUS = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")


def threads_per_process(cores: float, parallel: int, processes: int) -> int:
    """Return the compute threads of each process of a trial.

    Args:
        parallel: Number of trials that run at the same time.
    """
    return max(1, int(cores / (parallel * processes)))


def visible_gpus(environ: Mapping[str, str], driver: Path = _DRIVER) -> tuple[str, ...]:
    """Return the GPUs that CUDA may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        driver: Folder in which NVIDIA's driver lists the GPUs.
    """
    if GPUS in environ:
        return tuple(name for name in environ[GPUS].split(",") if name and name != "-1")
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    return tuple(map(str, range(count)))


def gpus_of_slot(gpus: Sequence[str], slot: int, parallel: int) -> tuple[str, ...]:
    """Return the GPUs of one of ``parallel`` slots for trials.

    All slots get the same number of GPUs; with fewer GPUs than slots, slots share them.

    Args:
        slot: Number of the slot, from 0.
    """
    if not gpus:
        return ()
    if len(gpus) < parallel:
        return (gpus[slot % len(gpus)],)
    share = len(gpus) // parallel
    return tuple(gpus[slot * share : (slot + 1) * share])
