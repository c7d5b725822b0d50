"""Key of a zygote: what its tasks inherit, and whether its modules are current.

A forked task inherits modules, variables read at import, limits and control groups. A zygote serves
only tasks that would have had the same values without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timonel.processes.zygote import import_environment
from timonel.storage import write_text

_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))

Stamps = dict[str, list[int] | None]
"""Modification time and size by file; None matches nothing."""


def zygote_key(preload: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the key of the zygote for these modules and environment."""
    parts = {
        "python": [sys.executable, sys.version, sys.prefix],
        "preload": list(preload),
        "environment": import_environment(env),
        "inherited": _inherited(),
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def loaded_files(before_ns: int) -> Stamps:
    """Return stamps of the files of all imported modules.

    Args:
        before_ns: Start of the imports. A file that changed since may have been read before or
            after the change, so it gets no stamp.
    """
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    found = {path: _stamp(path) for path in paths if isinstance(path, str)}
    return {
        path: None if stamp is None or stamp[0] >= before_ns else stamp
        for path, stamp in found.items()
    }


def write_stamps(path: Path, stamps: Stamps) -> None:
    """Publish the stamps of a process."""
    write_text(path, json.dumps(stamps))


def is_current(path: Path) -> bool:
    """Whether all files match a process's stamps; true until it publishes them."""
    try:
        stamps: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return all(stamp is not None and _stamp(name) == stamp for name, stamp in stamps.items())


def _stamp(path: str) -> list[int] | None:
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return [stat.st_mtime_ns, stat.st_size]


def _inherited() -> dict[str, object]:
    """Return inherited properties that a child cannot or should not change."""
    return {
        "user": [os.getuid(), os.getgid(), sorted(os.getgroups())],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in _LIMITS],
        "processors": sorted(os.sched_getaffinity(0)),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "groups": Path("/proc/self/cgroup").read_text(),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES],  # noqa: PTH115 - not paths
    }
