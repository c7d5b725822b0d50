"""Detect changes on disk of the modules that a process imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from timonel.storage import write_text

Stamps = dict[str, list[int] | None]


def loaded_files(before_ns: int) -> Stamps:
    """Return modification time and size of the files of all imported modules.

    Args:
        before_ns: Start of the imports. A file that changed since may have been read before or
            after the change; it has no stamp, and matches nothing.
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
