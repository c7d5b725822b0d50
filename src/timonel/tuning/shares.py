"""Shares of a machine's CPU cores and GPUs for parallel trials. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def threads_per_process(cores: float, parallel: int, processes: int) -> int:
    """Return the compute threads of each process of a trial.

    Args:
        cores: Usable cores of the machine.
        parallel: Number of trials that run at the same time.
        processes: Number of processes of each trial.
    """
    return max(1, int(cores / (parallel * processes)))


def gpus_of_slot(gpus: Sequence[str], slot: int, parallel: int) -> tuple[str, ...]:
    """Return the GPUs of one of ``parallel`` slots for trials.

    Each slot gets as many GPUs as the others; with fewer GPUs than slots, slots share them.

    Args:
        gpus: Names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``.
        slot: Number of the slot, from 0.
        parallel: Number of slots.
    """
    if not gpus:
        return ()
    if len(gpus) < parallel:
        return (gpus[slot % len(gpus)],)
    share = len(gpus) // parallel
    return tuple(gpus[slot * share : (slot + 1) * share])
