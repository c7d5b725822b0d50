"""CPU time and memory of a server's processes: itself, and processes of Python models."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psutil

from timonel.processes.tree import descendants, tree_cpu_s

_LEAST_PERIOD_S = 0.9
"""Reading all processes takes milliseconds, and several clients may read the metrics."""


class Usage(NamedTuple):
    """Resources in use, by kind of process: ``server``, or ``compute`` for its descendants.

    Args:
        memory: Memory in bytes, with shared pages in proportion.
        cpu_s: CPU time in seconds since the start, that of ended processes included.
    """

    memory: Mapping[str, int] = {}
    cpu_s: Mapping[str, float] = {}


class ResourceMeter:
    """Measures this process and its descendants, about once per second at most. Thread-safe.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._usage = Usage()

    def read(self) -> Usage:
        """Return the last measurement, or a new one."""
        with self._lock:
            now = self._clock()
            if now - self._read_at >= _LEAST_PERIOD_S:
                self._usage, self._read_at = measure(), now
            return self._usage


def measure() -> Usage:
    """Return the resources in use by this process and its descendants."""
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
