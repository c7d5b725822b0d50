"""Memory of the machine and of control groups: shortage, and out-of-memory kills.

Control groups (cgroups) of versions 1 and 2 are supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

SAMPLE_INTERVAL_S = 5.0
"""Recommended interval of `OomWatch.sample`."""
SCARCE_SHARE = 0.1
"""Share of available memory below which memory is scarce."""
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_OOM_FILES = ("memory.events", "memory.oom_control")  # versions 2 and 1
# Limit, usage, and the name of the reclaimable part, for versions 2 and 1.
_USAGE_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class OomWatch:
    """Detects out-of-memory kills by comparing the kernel's counters with a sample.

    The kernel does not tell a parent why its child got SIGKILL, but counts its out-of-memory kills.
    A SIGKILL counts as out-of-memory if a counter grew since the last sample; regular samples keep
    old kills from being counted.
    """

    def __init__(self, counters: tuple[Path, ...] | None = None) -> None:
        self._counters = oom_counters() if counters is None else counters
        self.sample()

    def sample(self) -> None:
        """Sample the counters."""
        self._before = self._read()

    def has_killed(self) -> bool:
        """Whether a counter has grown since the last sample."""
        return any(now > before for now, before in zip(self._read(), self._before, strict=True))

    def _read(self) -> tuple[int, ...]:
        return tuple(map(_oom_kills, self._counters))


def oom_counters(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> tuple[Path, ...]:
    """Return the counter files of this process's cgroups, else the machine's."""
    paths = [folder / name for folder in _groups(proc, cgroups) for name in _OOM_FILES]
    # The machine's counter includes other containers, so it is only the fallback.
    return tuple(path for path in paths if _oom_kills(path) >= 0) or (proc / "vmstat",)


def is_memory_scarce(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> bool:
    """Whether the machine or a cgroup of this process is short of memory."""
    return any(share < SCARCE_SHARE for share in _available_shares(proc, cgroups))


def _available_shares(proc: Path, cgroups: Path) -> Iterator[float]:
    text = _read(proc / "meminfo")
    machine = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE))
    if len(machine) == 2 and int(machine["MemTotal"]):
        yield int(machine["MemAvailable"]) / int(machine["MemTotal"])
    for folder in _groups(proc, cgroups):
        for limit_file, usage_file, cache in _USAGE_FILES:
            limit, usage = _read(folder / limit_file).strip(), _read(folder / usage_file).strip()
            # Without a limit: "max", or a number beyond any machine's memory.
            if limit.isdigit() and usage.isdigit() and int(limit):
                stat = _read(folder / "memory.stat")
                match = re.search(rf"^{cache} (\d+)$", stat, re.MULTILINE)
                yield 1 - (int(usage) - (int(match.group(1)) if match else 0)) / int(limit)


def _groups(proc: Path, cgroups: Path) -> list[Path]:
    """Return the folders of this process's memory cgroups and of their roots.

    A container sees its own cgroup as the root, whatever its path.
    """
    folders = []
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        if not controllers:
            folders += [cgroups / inside, cgroups]
        elif "memory" in controllers.split(","):
            folders += [cgroups / "memory" / inside, cgroups / "memory"]
    return [folder for folder in folders if folder.is_dir()]


def _oom_kills(path: Path) -> int:
    match = _OOM_KILLS.search(_read(path))
    return int(match.group(1)) if match else -1


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
