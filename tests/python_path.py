"""Where processes that tests start find modules of the tests."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path(*places: Path) -> str:
    """Return a ``PYTHONPATH`` with folders of modules, then the tests, then this process's own."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = [*map(str, places), str(ROOT), *given]
    return os.pathsep.join(dict.fromkeys(filter(None, found)))
