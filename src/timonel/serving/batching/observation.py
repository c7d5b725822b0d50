"""What is told of each batch, for whoever counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchObservation:
    """One batch that was computed.

    Args:
        queue_s: How long each of its requests waited, in seconds, in the order of arrival.
        compute_s: How long the model took, in seconds.
        rows: The rows that were asked for.
        padded_rows: The rows that were added to them.
        signature: What was run.
        failed: Whether the model refused the batch.
    """

    queue_s: tuple[float, ...]
    compute_s: float
    rows: int
    padded_rows: int
    signature: str = ""
    failed: bool = False


Observer = Callable[[BatchObservation], None]
"""Called after each batch, from the thread that computed it; must be quick and thread-safe."""
