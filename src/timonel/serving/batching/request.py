"""A queued request: its arrays, and the future of its response. Measurements of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from timonel.serving.runtimes.base import Pending
from timonel.serving.signature import Array

Answer = dict[str, Array]


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


class BatchRequest:
    """A request with its arrays and future. Thread-safe; compared by identity.

    Args:
        inputs: Arrays by input name.
        outputs: The requested outputs, in order.
        rows: The number of rows.
        arrived: The time of arrival.
        deadline: Time after which the response is useless; None for never.
    """

    __slots__ = (
        "_claimed", "_lock", "_parts", "arrived", "deadline", "future", "inputs", "outputs",
        "queue_s", "rows",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        rows: int,
        arrived: float,
        deadline: float | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.rows = rows
        self.arrived = arrived
        self.deadline = deadline
        self.future = Pending()
        self.future.compute_s = 0.0
        self.queue_s = 0.0
        """Seconds spent in the queue, known once the request is computed."""
        self._lock = threading.Lock()
        self._claimed: bool | None = None
        self._parts: dict[int, Answer] = {}

    def is_late(self, now: float) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and self.deadline <= now

    def claim(self) -> bool:
        """Mark the request as running, so that it cannot be cancelled.

        Returns:
            False if the request was cancelled or is already done.
        """
        with self._lock:
            if self._claimed is None:
                self._claimed = self.future.set_running_or_notify_cancel()
            return self._claimed and not self.future.done()

    def add_compute_time(self, seconds: float) -> None:
        """Add seconds that the model took to compute some of the rows."""
        with self._lock:
            self.future.compute_s = (self.future.compute_s or 0.0) + seconds

    def answer(self, piece: Piece, outputs: Answer) -> None:
        """Add outputs of some rows; complete the future after the last."""
        requested = {name: outputs[name] for name in self.outputs}
        with self._lock:
            if self.future.done():
                return
            if piece.rows == self.rows:
                self.future.set_result(requested)
                return
            self._parts[piece.start] = requested
            if sum(len(next(iter(part.values()))) for part in self._parts.values()) < self.rows:
                return
            parts = [self._parts[start] for start in sorted(self._parts)]
            self.future.set_result(
                {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}
            )

    def fail(self, error: BaseException) -> None:
        """Fail the request, unless it is done."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` to ``stop`` of a request; all unless it was split."""

    request: BatchRequest
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Input rows."""
        inputs = self.request.inputs
        if self.rows == self.request.rows:
            return inputs
        return {name: array[self.start : self.stop] for name, array in inputs.items()}
