"""Sparklines and bars of a few characters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Render ``values`` as blocks, lowest to highest; dots are non-finite values.

    Args:
        values: The curve; more points than ``width`` are averaged in groups.
        width: Maximum number of characters.
    """
    # Scaled to [-1, 1] so that neither a sum nor a difference overflows.
    scale = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    points = _resample([value / scale for value in values], width)
    finite = [value for value in points if math.isfinite(value)]
    if not finite:
        return "·" * len(points)
    low, high = min(finite), max(finite)
    return "".join(_block(value, low, high) for value in points)


def bar(share: float, width: int = 20) -> str:
    """Render ``share``, between 0 and 1, as a bar of ``width`` characters."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "·"
    if high == low:
        return _BLOCKS[3]
    return _BLOCKS[round((value - low) / (high - low) * (len(_BLOCKS) - 1))]


def _resample(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [len(values) * i // width for i in range(width + 1)]
    return [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
