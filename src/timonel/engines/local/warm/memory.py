"""Detect scarce memory: unused warm parents then exit to free theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from timonel.engines.local.groups import CGROUPS, PROC, memory_groups

SCARCE_SHARE = 0.1
"""Share of available memory below which idle parents exit."""

# Limit, usage, and the name of the reclaimable part, by cgroup version.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def is_scarce(proc: Path = PROC, cgroups: Path = CGROUPS) -> bool:
    """Whether the machine or a cgroup is short of memory."""
    shares = [_machine(proc), *_groups(proc, cgroups)]
    return any(share is not None and share < SCARCE_SHARE for share in shares)


def _machine(proc: Path) -> float | None:
    text = _read(proc / "meminfo")
    found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE))
    if len(found) < 2 or not int(found["MemTotal"]):
        return None
    return int(found["MemAvailable"]) / int(found["MemTotal"])


def _groups(proc: Path, cgroups: Path) -> Iterator[float | None]:
    for folder in memory_groups(proc, cgroups):
        for limit_file, usage_file, cache in _FILES:
            limit, usage = _read(folder / limit_file).strip(), _read(folder / usage_file).strip()
            # Without a limit: "max", or a number beyond any machine's memory.
            if not limit.isdigit() or not usage.isdigit() or not int(limit):
                continue
            match = re.search(rf"^{cache} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            used = int(usage) - (int(match.group(1)) if match else 0)
            yield 1 - used / int(limit)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
