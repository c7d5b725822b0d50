"""Files that are read again when they change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
Stamp = tuple[int, int, int] | None
LOOK_S = 1.0


def stamp(path: Path) -> Stamp:
    """Return what changes when a file is replaced or written; none if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class ReloadedFile(Generic[T]):
    """A value that is made of files. Not thread-safe.

    Args:
        paths: The files.
        read: Makes the value; called again when one of the files has changed.
        failed: Called when that raised; the value stays what it was.

    Raises:
        Exception: What ``read`` raises the first time.
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
        """Return the value, read again if a file has changed; looks once a second.

        Args:
            now: Seconds of a clock that never goes back.
        """
        if now - self._looked < LOOK_S:
            return self.value
        self._looked = now
        stamps = self._look()
        if stamps != self._stamps:
            try:
                self.value = self._read()
            except Exception as error:  # noqa: BLE001 - told; what was there stays in use
                self._failed(error)
            self._stamps = stamps
        return self.value

    def _look(self) -> tuple[Stamp, ...]:
        return tuple(map(stamp, self._paths))
