"""Decide which idle warm parents stay: the last few, while memory suffices.

Each key has its own parent, so changing environments or modules would accumulate parents. Every
idle parent writes a mark beside its socket and reads those of the others; the one that has been
idle for longest exits first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path

from timonel.engines.local.processes import Identity, own_identity
from timonel.storage import write_text

MOST_IDLE = 2
_SUFFIX = ".idle"


def is_surplus(since: float, others: Collection[float], most: int = MOST_IDLE) -> bool:
    """Whether an idle parent is one too many.

    Args:
        since: When it became idle.
        others: When the other idle parents became so.
        most: Maximum number of idle parents.
    """
    return sum(other > since for other in others) >= most


class IdleMark:
    """Idle mark of a warm parent beside its socket. For one thread.

    Args:
        socket_path: Socket of the parent.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path.with_suffix(_SUFFIX)
        self._since: float | None = None

    @property
    def is_surplus(self) -> bool:
        """Whether this parent is idle, and enough others became idle after it."""
        return self._since is not None and is_surplus(self._since, self._others())

    @property
    def is_set(self) -> bool:
        """Whether this parent is idle."""
        return self._since is not None

    def set(self) -> None:
        """Mark the parent as idle."""
        self._since = time.monotonic()
        content = {"since": self._since, "parent": own_identity().as_json()}
        write_text(self._path, json.dumps(content))

    def clear(self) -> None:
        """Remove the idle mark."""
        if self._since is not None:
            self._path.unlink(missing_ok=True)
        self._since = None

    def _others(self) -> list[float]:
        marks = [p for p in self._path.parent.glob(f"*{_SUFFIX}") if p != self._path]
        return [since for since in map(_since, marks) if since is not None]


def _since(path: Path) -> float | None:
    """Return when a mark's parent became idle; None if gone."""
    try:
        content = json.loads(path.read_text())
        parent, since = Identity.from_json(content["parent"]), float(content["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return since if parent is not None and parent.is_alive else None
