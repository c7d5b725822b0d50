"""CPU cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(root: Path = _CGROUP) -> float:
    """Return the usable cores: CPU affinity, limited by the cgroup's quota.

    TensorFlow considers only the affinity, and starts a thread for each core of the machine in a
    container limited to two.
    """
    present = len(os.sched_getaffinity(0))
    for read in (_quota_v2, _quota_v1):
        try:
            quota = read(root)
        except (OSError, ValueError):
            continue
        return present if quota is None else min(present, quota)
    return present


def _quota_v2(root: Path) -> float | None:
    quota, period = (root / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(root: Path) -> float | None:
    quota = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
    return None if quota < 0 else quota / int((root / "cpu" / "cpu.cfs_period_us").read_text())
