"""Whether the kernel has killed for want of memory lately, from its own counters.

The kernel does not tell a parent why its child got SIGKILL. It counts what it killed: per control
group (version 2 and 1) and for the whole machine. A kill that falls together with a count is taken
for one; the counter is sampled now and then so that an old count is not held against a new death.
"""

from __future__ import annotations

import re
from pathlib import Path

from timonel.engines.local.groups import CGROUPS, PROC, memory_groups

SAMPLE_INTERVAL_S = 5.0

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Compares the kernel's counters of out-of-memory kills with those of the last sample."""

    def __init__(self, counters: tuple[Path, ...] | None = None) -> None:
        self._counters = find_counters() if counters is None else counters
        self._before = self._read()

    def sample(self) -> None:
        """Forget what was counted until now."""
        self._before = self._read()

    def has_killed(self) -> bool:
        """Tell whether a counter has grown since the last sample."""
        now = self._read()
        return any(count > before for count, before in zip(now, self._before, strict=True))

    def _read(self) -> tuple[int, ...]:
        return tuple(_count(path) for path in self._counters)


def find_counters(proc: Path = PROC, cgroups: Path = CGROUPS) -> tuple[Path, ...]:
    """Return the counter files of this process's control groups, or else the machine's."""
    names = ("memory.events", "memory.oom_control")  # of version 2 and 1
    paths = [folder / name for folder in memory_groups(proc, cgroups) for name in names]
    found = [path for path in paths if _count(path) >= 0]
    # The machine's counter also covers other people's containers: only where nothing closer is.
    return tuple(found) or (proc / "vmstat",)


def _count(path: Path) -> int:
    try:
        match = _COUNT.search(path.read_text())
    except OSError:
        return -1
    return int(match.group(1)) if match else -1
