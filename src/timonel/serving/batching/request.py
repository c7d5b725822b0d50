"""A queued request: its arrays, and the future of its response."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from timonel.serving.batching.queue import Piece, Task
from timonel.serving.runtimes.base import Pending
from timonel.serving.signature import Array

Answer = dict[str, Array]


class Request(Task):
    """A task with its arrays and the future of its response. Thread-safe.

    Args:
        inputs: Arrays by input name.
        outputs: The requested outputs, in order.
        rows: The number of rows.
        arrived: The time of arrival.
        deadline: Time after which the response is useless; None for never.
    """

    __slots__ = ("_claimed", "_lock", "_parts", "future", "inputs", "outputs", "queue_s")

    def __init__(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        rows: int,
        arrived: float,
        deadline: float | None,
    ) -> None:
        super().__init__(rows, arrived, deadline)
        self.inputs = inputs
        self.outputs = outputs
        self.future = Pending()
        self.future.compute_s = 0.0
        self.queue_s = 0.0
        """Seconds spent in the queue, known once the request is computed."""
        self._lock = threading.Lock()
        self._claimed: bool | None = None
        self._parts: dict[int, Answer] = {}

    def claim(self) -> bool:
        """Mark the request as running, so that it cannot be cancelled.

        Returns:
            False if the request was cancelled or is already done.
        """
        with self._lock:
            if self._claimed is None:
                self._claimed = self.future.set_running_or_notify_cancel()
            return self._claimed and not self.future.done()

    def took(self, seconds: float) -> None:
        """Add seconds that the model took to compute some of the rows."""
        with self._lock:
            self.future.compute_s = (self.future.compute_s or 0.0) + seconds

    def answer(self, piece: Piece[Request], outputs: Answer) -> None:
        """Add outputs of some rows; complete the future after the last."""
        wanted = {name: outputs[name] for name in self.outputs}
        with self._lock:
            if self.future.done():
                return
            if piece.rows == self.rows:
                self.future.set_result(wanted)
                return
            self._parts[piece.start] = wanted
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
