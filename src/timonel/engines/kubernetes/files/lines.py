"""Own lines of a process in files to which several processes append."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")


def missing_lines(
    own: Iterable[bytes], known: bytes, theirs: bytes
) -> tuple[bytes, list[tuple[int, int]]]:
    """Find local lines in another process's copy of a file.

    Equal lines are counted, without those known to be of other processes, so no local line is
    lost. If the other process has lost some of these, a local line may occur once too often.

    Args:
        own: Pieces that this process appended.
        known: All lines that this process knows, including its own.
        theirs: Lines that the other process knows.

    Returns:
        Own lines that are not among theirs, and the byte ranges of theirs that are own.
    """
    lines = [line for piece in own for line in _complete_lines(piece)]
    others = Counter(_complete_lines(known)) - Counter(lines)
    arrived = Counter(lines) & (Counter(_complete_lines(theirs)) - others)
    ranges, offset, left = [], 0, arrived.copy()
    for size, line in zip(map(len, _LINE.findall(theirs)), _complete_lines(theirs), strict=True):
        if _take(left, line):
            ranges.append((offset, offset + size))
        offset += size
    return b"".join(line for line in lines if not _take(arrived, line)), ranges


def _complete_lines(data: bytes) -> list[bytes]:
    """Return lines, each with a line feed at the end."""
    return [line.removesuffix(b"\n") + b"\n" for line in _LINE.findall(data)]


def _take(counts: Counter[bytes], line: bytes) -> bool:
    counts[line] -= 1
    return counts[line] >= 0
