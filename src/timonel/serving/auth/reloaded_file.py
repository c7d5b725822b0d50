"""Reload files when they change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
Stamp = tuple[int, int, int] | None
LOOK_S = 1.0


def stamp(path: Path) -> Stamp:
    """Return inode, size and mtime of a file; None if missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class ReloadedFile(Generic[T]):
    """A value read from files and reloaded on change. Not thread-safe.

    Args:
        read: Creates the value; called again when a file has changed.
        failed: Called if a reload raised; the previous value stays in use.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        read: Callable[[], T],
        failed: Callable[[Exception], None],
    ) -> None:
        self._paths = paths
        self._read = read
        self._failed = failed
        self._stamps = self._look()
        self._looked = float("-inf")
        self.value = read()

    def refreshed(self, now: float) -> T:
        """Return the value at ``now``, in monotonic seconds; check files once a second at most."""
        if now - self._looked < LOOK_S:
            return self.value
        self._looked = now
        stamps = self._look()
        if stamps != self._stamps:
            try:
                self.value = self._read()
            except Exception as error:  # noqa: BLE001 - reported; the old value stays in use
                self._failed(error)
            self._stamps = stamps
        return self.value

    def _look(self) -> tuple[Stamp, ...]:
        return tuple(map(stamp, self._paths))
