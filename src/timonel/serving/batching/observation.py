"""Measurements of a batch, for metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchObservation:
    """Measurements of a computed batch.

    Args:
        queue_s: Seconds that each request waited, in order of arrival.
        compute_s: Seconds that the model computed.
        rows: Number of requested rows.
        padded_rows: Number of rows added as padding.
        signature: The signature that ran.
        failed: Whether the batch failed.
    """

    queue_s: tuple[float, ...]
    compute_s: float
    rows: int
    padded_rows: int
    signature: str = ""
    failed: bool = False


Observer = Callable[[BatchObservation], None]
"""Callback after each batch, in the computing thread; quick and thread-safe."""
