"""Identity of a run's process, and whether it is still alive."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return values that identify this process on this machine.

    No earlier or later process has the same values.
    """
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "start": _start_ticks(os.getpid()),
    }


def is_gone(process: Mapping[str, Any]) -> bool:
    """Return whether a process described by `this_process` has ended; False if unknown."""
    try:
        pid, start = int(process["pid"]), process["start"]
        if process["host"] != socket.gethostname() or start is None:
            return False
        return bool(process["boot"] != _boot_id() or _start_ticks(pid) != start)
    except (KeyError, TypeError, ValueError):
        return False


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return None
    # The command's name, in parentheses, may contain anything; fields 3 to 52 follow the last ")".
    return int(stat.rpartition(")")[2].split()[19])


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
