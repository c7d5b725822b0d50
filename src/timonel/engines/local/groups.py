"""Memory control groups (cgroup v1 and v2) of this process."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def memory_groups(proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Path]:
    """Return the folders of this process's memory cgroups and of their roots.

    A container sees its own cgroup as the root, whatever its path.
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
