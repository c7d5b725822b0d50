"""Metrics computed on demand: versions by state, and memory."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from timonel.serving.manager.catalogue import Catalogue


def versions(catalogue: Catalogue) -> Mapping[tuple[str, str], int]:
    """Count versions by model and state."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for name in catalogue.names:
        for status in catalogue.known(name):
            counts[name, status.state.value] += 1
    return counts


def memory() -> Mapping[str, int]:
    """Return the memory of this process and its children, in bytes.

    Shared pages count in proportion for each process, if the kernel reports that.
    """
    return {
        "server": proportional(os.getpid()),
        "compute": sum(
            proportional(child.pid) for child in psutil.Process().children(recursive=True)
        ),
    }


def proportional(pid: int) -> int:
    """Return a process's proportional memory in bytes; 0 if gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
