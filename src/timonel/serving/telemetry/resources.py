"""CPU time and memory of a server's processes: itself, and processes of Python models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import psutil

from timonel.processes.tree import descendants, tree_cpu_s


class Usage(NamedTuple):
    """Resources in use, by kind of process: ``server``, or ``compute`` for its descendants.

    Args:
        memory: Memory in bytes, with shared pages in proportion.
        cpu_s: CPU time in seconds since the start, that of ended processes included.
    """

    memory: Mapping[str, int]
    cpu_s: Mapping[str, float]


def measure() -> Usage:
    """Return the resources in use by this process and its descendants; takes milliseconds."""
    below = descendants(os.getpid())
    own_s, children_s = tree_cpu_s(os.getpid(), below)
    return Usage(
        {
            "server": proportional_bytes(os.getpid()),
            "compute": sum(proportional_bytes(pid) for pid in below),
        },
        {"server": own_s, "compute": children_s},
    )


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, with shared pages in proportion; 0 if it has ended."""
    try:
        memory = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return 0
    # Without smaps in the kernel, only the resident size is known.
    return int(getattr(memory, "pss", memory.rss))
