"""Version folders of a model, and detection of complete versions."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from timonel.serving.manager.plan import Candidate

_NUMBER = re.compile(r"\s*[+-]?\d+\s*\Z", re.ASCII)
_INT64 = range(-(2**63), 2**63)
PUBLISHED_MARK = Path("assets.extra", "timonel.json")
"""File written by `timonel export`, which publishes versions atomically by a rename."""


def version_folders(base: Path) -> dict[int, Path]:
    """Return the version folders below ``base`` by number.

    A folder is a version if its name parses as a 64-bit integer, as in TensorFlow Serving. If two
    names give the same number, the lexically later one wins.

    Raises:
        OSError: The folder cannot be read.
    """
    found: dict[int, Path] = {}
    for path in sorted(base.iterdir()):
        if (number := version_number(path.name)) is not None:
            found[number] = path
    return found


def version_number(name: str) -> int | None:
    """Return a folder name's version number; None if not a version."""
    if _NUMBER.match(name) and (number := int(name)) in _INT64:
        return number
    return None


def labels_of(version: Path) -> tuple[str, ...]:
    """Return the class names exported with a version, if any."""
    try:
        text = (version / "assets" / "labels.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(text.splitlines())


class Settling:
    """Detect whether a version is complete or still being written.

    A version that timonel published is complete when it is visible. Any other must stay unchanged
    for ``settle_s`` seconds, over at least two looks. Not thread-safe: owned by the loader's
    thread.

    Args:
        settle_s: Seconds for which the content must stay unchanged.
        clock: Returns the present time in seconds.
    """

    def __init__(self, settle_s: float, clock: Callable[[], float]) -> None:
        self._settle_s = settle_s
        self._clock = clock
        self._seen: dict[Path, tuple[str, float]] = {}

    def look(self, folders: Mapping[int, Path], numbers: Iterable[int]) -> list[Candidate]:
        """Return the state of the versions ``numbers``, in that order."""
        candidates = [self._candidate(number, folders[number]) for number in numbers]
        seen = {Path(candidate.path) for candidate in candidates}
        self._seen = {path: look for path, look in self._seen.items() if path in seen}
        return candidates

    def _candidate(self, number: int, path: Path) -> Candidate:
        mark = fingerprint(path)
        complete = (path / PUBLISHED_MARK).is_file() or self._is_settled(path, mark)
        return Candidate(number, str(path), mark, complete)

    def _is_settled(self, path: Path, mark: str) -> bool:
        now = self._clock()
        before = self._seen.get(path)
        if before is None or before[0] != mark:
            self._seen[path] = (mark, now)
            return False
        return now - before[1] >= self._settle_s


def fingerprint(path: Path) -> str:
    """Return a hash of all file names, sizes and times below ``path``."""
    digest = hashlib.blake2b(digest_size=16)
    for name, size, mtime_ns in sorted(_files(path)):
        digest.update(f"{name}\0{size}\0{mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(root: Path) -> Iterable[tuple[str, int, int]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - a Path per file and poll is slow
            try:
                status = os.stat(path)  # noqa: PTH116 - as above
            except OSError:  # removed since, or not readable
                continue
            yield path, status.st_size, status.st_mtime_ns
