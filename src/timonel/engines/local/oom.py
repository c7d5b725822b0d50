"""Detect out-of-memory kills from the kernel's counters.

The kernel does not tell a parent why its child got SIGKILL, but counts its out-of-memory kills per
control group (versions 2 and 1) and for the machine. A SIGKILL counts as out-of-memory if a counter
grew since the last sample; regular samples keep old kills from being counted.
"""

from __future__ import annotations

import re
from pathlib import Path

from timonel.engines.local.groups import CGROUPS, PROC, memory_groups

SAMPLE_INTERVAL_S = 5.0

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Compares out-of-memory counters with the last sample."""

    def __init__(self, counters: tuple[Path, ...] | None = None) -> None:
        self._counters = find_counters() if counters is None else counters
        self._before = self._read()

    def sample(self) -> None:
        """Sample the counters."""
        self._before = self._read()

    def has_killed(self) -> bool:
        """Whether a counter has grown since the last sample."""
        now = self._read()
        return any(count > before for count, before in zip(now, self._before, strict=True))

    def _read(self) -> tuple[int, ...]:
        return tuple(_count(path) for path in self._counters)


def find_counters(proc: Path = PROC, cgroups: Path = CGROUPS) -> tuple[Path, ...]:
    """Return the counter files of this process's cgroups, else the machine's."""
    names = ("memory.events", "memory.oom_control")  # versions 2 and 1
    paths = [folder / name for folder in memory_groups(proc, cgroups) for name in names]
    found = [path for path in paths if _count(path) >= 0]
    # The machine's counter includes other containers, so it is only the fallback.
    return tuple(found) or (proc / "vmstat",)


def _count(path: Path) -> int:
    try:
        match = _COUNT.search(path.read_text())
    except OSError:
        return -1
    return int(match.group(1)) if match else -1
