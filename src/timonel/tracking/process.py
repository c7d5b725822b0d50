"""Which process is a run, and whether it still lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return what tells this process from every other one of this machine, before and later."""
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "start": _start_ticks(os.getpid()),
    }


def is_gone(process: Mapping[str, Any]) -> bool:
    """Tell whether a process that `this_process` described has ended; False if nobody can know."""
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
    # The command's name, in parentheses, may hold anything; fields 3 to 52 follow its last one.
    return int(stat.rpartition(")")[2].split()[19])


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
