"""Whether the modules that a process has imported are still what lies on disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from timonel.storage import write_text

Stamps = dict[str, list[int] | None]


def loaded_files(before_ns: int) -> Stamps:
    """Return time and size of every file that this process's modules came from.

    Args:
        before_ns: When importing began. A file that was changed since may have been read before
            or after; it has no stamp, and so fits nothing.
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
    """Tell whether all files are as a process found them; true as long as it has not told."""
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
