"""What lies in a model's folder: version numbers, and whether a version is all there."""

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
"""Written by `timonel export`, whose versions appear by a rename: they are never half there."""


def version_folders(base: Path) -> dict[int, Path]:
    """Return the versions below ``base`` by number.

    A name is a version when it reads as a 64-bit integer, as in TensorFlow Serving; of two names
    for one number the lexically later one counts.

    Raises:
        OSError: The folder cannot be read.
    """
    found: dict[int, Path] = {}
    for path in sorted(base.iterdir()):
        if (number := version_number(path.name)) is not None:
            found[number] = path
    return found


def version_number(name: str) -> int | None:
    """Return the version that a folder's name means; none if it means none."""
    if _NUMBER.match(name) and (number := int(name)) in _INT64:
        return number
    return None


def labels_of(version: Path) -> tuple[str, ...]:
    """Return the class names that were exported with a version; none when it has none."""
    try:
        text = (version / "assets" / "labels.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(text.splitlines())


class Settling:
    """Tells a version that is complete from one that somebody is still writing.

    A version that timonel published is complete when it is visible. Any other must look the same
    for ``settle_s`` seconds, over at least two looks. Not thread-safe: the loader's thread owns it.

    Args:
        settle_s: How long content must stay the same.
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
    """Return a text that changes when a file below ``path`` is added, removed or rewritten."""
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
            except OSError:  # removed since, or not ours to see
                continue
            yield path, status.st_size, status.st_mtime_ns
