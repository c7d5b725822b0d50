"""Learn the best batch size from measured compute times. Pure.

Larger batches pay off while the time per row decreases. The limit is the smallest power of two
whose time per row is, within a tolerance, the lowest measured. It grows by exploration: while the
largest measured size is the best one, larger batches are allowed.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

T = TypeVar("T")

_BUCKETS = 21
_TOLERANCE = 1.1
_GROWTH = 2
_ENOUGH = 3
"""Measurements before a size counts.

The first ones allocate memory and warm caches.
"""
_EXPLORE = 64
_FASTER, _SLOWER = 0.5, 0.1
"""Weights of faster and slower measurements: noise only makes runs slower."""


class Learned(NamedTuple):
    """Measurements of a signature's batches; a tuple for speed.

    Args:
        row_s: Seconds per row, by size: entry k is for batches of more than 2^(k-1) and at most 2^k
            rows.
        counts: Number of measurements, by size.
        seen: Number of all measurements.
    """

    row_s: tuple[float, ...] = (0.0,) * _BUCKETS
    counts: tuple[int, ...] = (0,) * _BUCKETS
    seen: int = 0


def observe(learned: Learned, rows: int, seconds: float) -> Learned:
    """Return the updated measurements after a batch took ``seconds`` to compute."""
    if rows < 1:
        return learned
    size = _size(rows)
    measured = seconds / rows
    count = learned.counts[size]
    before = learned.row_s[size] if count else measured
    follows = before + (measured - before) * (_FASTER if measured < before else _SLOWER)
    return Learned(
        _with(learned.row_s, size, follows),
        _with(learned.counts, size, count + 1),
        learned.seen + 1,
    )


def limit(learned: Learned, max_rows: int) -> int:
    """Return the maximum rows of the next batch, from 1 to ``max_rows``."""
    known = [size for size, count in enumerate(learned.counts) if count >= _ENOUGH]
    if not known:
        # Start small: otherwise small sizes are never tried, and never found to be cheap.
        return 1
    cheapest = min(learned.row_s[size] for size in known)
    best = next(size for size in known if learned.row_s[size] <= _TOLERANCE * cheapest)
    if best == known[-1]:
        best += _GROWTH
    elif learned.seen % _EXPLORE == 0:
        # Retry sizes that were slow once, as the cause may be temporary.
        best += 1
    elif learned.seen % _EXPLORE == _EXPLORE // 2:
        best = max(best - 1, 0)
    return min(1 << best, max_rows)


def _size(rows: int) -> int:
    return min((rows - 1).bit_length(), _BUCKETS - 1)


def _with(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
