"""Backoff before restarts. Pure functions."""

from __future__ import annotations


def backoff_s(restart: int, first_s: float, max_s: float) -> float:
    """Return the delay in seconds before a restart.

    Args:
        restart: Number of the restart in a row, from 1.
        first_s: Delay before the second one. The first has none; later delays double.
        max_s: Maximum delay.
    """
    if restart == 1:
        return 0.0
    # The exponent is bounded because 2.0 ** 1024 overflows.
    return min(max_s, first_s * 2.0 ** min(restart - 2, 64))
