"""Requests that wait to be computed, and the batches that they form."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from timonel.serving.signature import Array
from timonel.serving.status import StatusError

Answer = dict[str, Array]
Key = tuple[Any, ...]
"""Requests with the same key may share a batch; it begins with the signature's name."""
ALONE: Key = ()
"""Key of requests that are computed one by one."""


class Request(Future[Answer]):
    """A request, and the future of its outputs. Thread-safe; compared by identity.

    Args:
        signature: The signature to run.
        inputs: Arrays by input name.
        outputs: The requested outputs, in order.
        arrived: The time of arrival.
        deadline: Time after which the response is useless; None for never.
        on_cancel: Called with the request when it is cancelled, perhaps more than once.
    """

    rows = 1
    key = ALONE
    whole: Request | None = None
    """The request whose rows these are, if it was split."""

    def __init__(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        arrived: float,
        deadline: float | None = None,
        on_cancel: Callable[[Request], None] | None = None,
    ) -> None:
        super().__init__()
        self.signature = signature
        self.inputs = inputs
        self.outputs = outputs
        self.arrived = arrived
        self.deadline = deadline
        self.compute_s = 0.0
        """Seconds that the model computed, until the request is done."""
        self._on_cancel = on_cancel

    def is_late(self, now: float) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and self.deadline <= now

    def cancel(self) -> bool:
        """Cancel the request, unless it is running or done."""
        is_cancelled = super().cancel()
        if is_cancelled and self._on_cancel is not None:
            self._on_cancel(self)
        return is_cancelled

    def set_exception(self, exception: BaseException | None) -> None:
        """Store an error; a `StatusError` is copied without its traceback.

        The traceback's frames refer to the request, and often to this future. Such a cycle would
        keep the inputs in memory until the next full garbage collection.
        """
        if isinstance(exception, StatusError):
            exception = copy.copy(exception)
        super().set_exception(exception)

    def split(self, edges: Sequence[int]) -> list[Request]:
        """Return requests for the rows between ``edges``, which together complete this one."""
        answers: dict[int, Answer | BaseException] = {}
        lock = threading.Lock()

        def add(start: int, part: Future[Answer]) -> None:
            with lock:
                answers[start] = part.exception() or part.result()
                self.compute_s += getattr(part, "compute_s", 0.0)
                if len(answers) == len(edges) - 1:
                    self._join([answers[edge] for edge in edges[:-1]])

        parts = []
        for start, stop in itertools.pairwise(edges):
            inputs = {name: array[start:stop] for name, array in self.inputs.items()}
            part = Request(self.signature, inputs, self.outputs, self.arrived, self.deadline)
            part.rows, part.key, part.whole = stop - start, self.key, self
            part.add_done_callback(partial(add, start))
            parts.append(part)
        return parts

    def _join(self, answers: Sequence[Answer | BaseException]) -> None:
        """Complete a request that was split, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        parts = []
        for answer in answers:
            if isinstance(answer, BaseException):
                self.set_exception(answer)
                return
            parts.append(answer)
        try:
            joined = {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}
        except Exception as error:  # noqa: BLE001 - becomes the response
            self.set_exception(error)
        else:
            self.set_result(joined)


class Batch(NamedTuple):
    """Requests taken from a queue, in order of arrival.

    Args:
        requests: What to compute together; empty if all are late.
        late: Requests to reject, because their deadlines have passed.
    """

    requests: Sequence[Request]
    late: Sequence[Request] = ()


class BatchObservation(NamedTuple):
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
    signature: str
    failed: bool


Observer = Callable[[BatchObservation], None]
"""Callback after each batch, in the computing thread; quick and thread-safe."""
