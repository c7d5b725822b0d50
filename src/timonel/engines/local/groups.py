"""The control groups of memory that this process is in, of either version."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def memory_groups(proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Path]:
    """Return the folders of this process's groups that govern memory, and of those above them all.

    A container sees its own group as the uppermost one, whatever its path says.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        if not controllers:
            folders += [cgroups / inside, cgroups]
        elif "memory" in controllers.split(","):
            folders += [cgroups / "memory" / inside, cgroups / "memory"]
    return [folder for folder in folders if folder.is_dir()]
