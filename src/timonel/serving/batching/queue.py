"""Requests that wait to be computed, and queues, which form batches of them.

Time is an argument, in seconds.

`NaturalQueue` returns all queued requests up to a limit; `ParameterQueue` decides as TensorFlow
Serving does. Queues are not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

import abc
import copy
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from timonel.serving.signature import Array
from timonel.serving.status import NotStartedError, StatusError, invalid_argument

Answer = dict[str, Array]
Key = tuple[Any, ...]
"""Requests with the same key may share a batch; it begins with the signature's name."""
ALONE: Key = ()
"""Key of requests that are computed one by one."""


class QueuedRequest(Future[Answer]):
    """A request, and the future of its outputs. Thread-safe; compared by identity.

    Args:
        deadline: Time after which the response is useless; None for never.
        on_cancel: Called with the request when it is cancelled, perhaps more than once.
    """

    rows = 1
    key = ALONE
    whole: QueuedRequest | None = None
    """The request whose rows these are, if it was split."""

    def __init__(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        arrived: float,
        deadline: float | None = None,
        on_cancel: Callable[[QueuedRequest], None] | None = None,
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

    def split(self, edges: Sequence[int]) -> list[QueuedRequest]:
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
            part = QueuedRequest(self.signature, inputs, self.outputs, self.arrived, self.deadline)
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
    """Requests taken from a queue in order of arrival, and those whose deadlines have passed."""

    requests: Sequence[QueuedRequest]
    late: Sequence[QueuedRequest] = ()


class BatchObservation(NamedTuple):
    """Measurements of a computed batch: waits in order of arrival, and rows without padding."""

    queue_s: tuple[float, ...]
    compute_s: float
    rows: int
    padded_rows: int
    signature: str
    failed: bool


Observer = Callable[[BatchObservation], None]
"""Callback after each batch, in the computing thread; quick and thread-safe."""


class Queue(abc.ABC):
    """A queue of requests whose rows may be computed together."""

    @abc.abstractmethod
    def add(self, request: QueuedRequest) -> int:
        """Add a request; return the number of parts that it was split into."""

    @abc.abstractmethod
    def due_at(self) -> float | None:
        """Return when the next batch is due; None if empty."""

    @abc.abstractmethod
    def take(self, now: float) -> Batch:
        """Take the next batch; there must be one."""

    @abc.abstractmethod
    def remove(self, request: QueuedRequest) -> int:
        """Remove a request; return the number of its parts that were queued."""


class Queues:
    """The queues of a version, which take turns: one batch each.

    Empty ones are dropped, as clients choose shapes, except that of requests computed alone.
    """

    def __init__(self, make: Callable[[Key], Queue], limit: int | None = None) -> None:
        self._make = make
        self._limit = limit
        self._queues: dict[Key, Queue] = {}
        self.waiting = 0
        """Number of queued requests, or of parts of these."""

    def add(self, request: QueuedRequest) -> None:
        """Add a request to the queue of its key."""
        if self._limit is not None and self.waiting >= self._limit:
            raise NotStartedError(f"{self._limit} requests wait for this version already.")
        queue = self._queues.get(request.key) or self._make(request.key)
        self.waiting += queue.add(request)
        self._queues[request.key] = queue

    def take(self, now: float, *, closing: bool = False) -> Batch | None:
        """Take the next batch, if one is due; when closing, all are."""
        for key, queue in self._queues.items():
            due_at = queue.due_at()
            if due_at is not None and (closing or due_at <= now):
                del self._queues[key]
                batch = queue.take(now)
                self.waiting -= len(batch.requests) + len(batch.late)
                if key == ALONE or queue.due_at() is not None:
                    self._queues[key] = queue
                return batch
        return None

    def due_at(self) -> float | None:
        """Return when the next batch is due; None if there are no requests."""
        found = (due for queue in self._queues.values() if (due := queue.due_at()) is not None)
        return min(found, default=None)

    def remove(self, request: QueuedRequest) -> None:
        """Remove a request, if it is still queued."""
        queue = self._queues.get(request.key)
        if queue is not None:
            self.waiting -= queue.remove(request)
            if request.key != ALONE and queue.due_at() is None:
                del self._queues[request.key]


class NaturalQueue(Queue):
    """Queue without delay: batches take all requests within a row limit.

    A request larger than the limit forms a batch alone. Expired requests are taken, too.
    """

    def __init__(self, max_rows: Callable[[], int] = lambda: 1) -> None:
        self._max_rows = max_rows
        self._requests: deque[QueuedRequest] = deque()

    def add(self, request: QueuedRequest) -> int:
        """Add a request."""
        self._requests.append(request)
        return 1

    def due_at(self) -> float | None:
        """Return the first request's arrival: queued requests are due at once."""
        return self._requests[0].arrived if self._requests else None

    def take(self, now: float) -> Batch:
        """Take the next batch, and expired requests."""
        waiting, max_rows = self._requests, self._max_rows()
        batch: list[QueuedRequest] = []
        late: list[QueuedRequest] = []
        rows = 0
        while waiting:
            request = waiting[0]
            if request.is_late(now):
                late.append(request)
            elif batch and rows + request.rows > max_rows:
                break
            else:
                batch.append(request)
                rows += request.rows
            waiting.popleft()
        return Batch(batch, late)

    def remove(self, request: QueuedRequest) -> int:
        """Remove a request."""
        if request not in self._requests:
            return 0
        self._requests.remove(request)
        return 1


@dataclass(frozen=True)
class QueueLimits:
    """TensorFlow Serving's limits of a queue: rows, seconds to fill a batch, queued batches."""

    request_rows: int
    batch_rows: int
    timeout_s: float
    batches: int
    split: bool = False


@dataclass(eq=False)
class _GrowingBatch:
    """A growing batch; its timeout starts with its first request."""

    since: float
    requests: list[QueuedRequest]
    rows: int = 0


class ParameterQueue(Queue):
    """TensorFlow Serving's queue: forms batches on arrival; only the last is open."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._batches: deque[_GrowingBatch] = deque()

    def add(self, request: QueuedRequest) -> int:
        """Add a request to the open batch, or to the next ones."""
        limits = self._limits
        if request.rows > limits.request_rows:
            raise invalid_argument(
                f"Task size {request.rows} is larger than maximum input batch size "
                f"{limits.request_rows}"
            )
        self._check_capacity(request)
        parts = self._split(request)
        for part in parts:
            if not self._batches or self._open_rows + part.rows > limits.batch_rows:
                self._batches.append(_GrowingBatch(part.arrived, []))
            self._batches[-1].requests.append(part)
            self._batches[-1].rows += part.rows
        return len(parts)

    def due_at(self) -> float | None:
        """Return when the first batch is full or reaches its timeout."""
        if not self._batches:
            return None
        first = self._batches[0]
        full = len(self._batches) > 1 or first.rows >= self._limits.batch_rows
        return first.since + (0 if full else self._limits.timeout_s)

    def take(self, now: float) -> Batch:
        """Take the first batch."""
        requests = self._batches.popleft().requests
        # A batch is computed as a whole unless all of its requests are late.
        if all(request.is_late(now) for request in requests):
            return Batch((), requests)
        return Batch(requests)

    def remove(self, request: QueuedRequest) -> int:
        """Remove a request, with all its parts."""
        removed = 0
        for batch in list(self._batches):
            kept = [each for each in batch.requests if request not in (each, each.whole)]
            if len(kept) < len(batch.requests):
                removed += len(batch.requests) - len(kept)
                batch.requests = kept
                batch.rows = sum(each.rows for each in kept)
                if not kept:
                    self._batches.remove(batch)
        return removed

    @property
    def _open_rows(self) -> int:
        return self._batches[-1].rows if self._batches else 0

    def _split(self, request: QueuedRequest) -> list[QueuedRequest]:
        size = self._limits.batch_rows
        first = size - self._open_rows
        if not self._limits.split or request.rows <= (first or size):
            return [request]
        # Fill the open batch first.
        return request.split([0, *range(first or size, request.rows, size), request.rows])

    def _check_capacity(self, request: QueuedRequest) -> None:
        limits = self._limits
        count = max(1, len(self._batches))  # an empty open batch counts
        if not limits.split:
            if self._open_rows + request.rows > limits.request_rows and count >= limits.batches:
                raise _full(
                    f"currently {count} batches enqueued and max_enqueued_batches is "
                    f"{limits.batches}"
                )
            return
        capacity = (limits.batches - count + 1) * limits.batch_rows - self._open_rows
        if request.rows > capacity:
            raise _full(
                f"task size is {request.rows} but scheduling capacity is only {capacity} "
                f"(num_enqueued_batches={count}, max_enqueued_batches={limits.batches}, "
                f"open_batch_size={self._open_rows}, "
                f"max_execution_batch_size={limits.batch_rows})"
            )


def _full(reason: str) -> StatusError:
    # The words of TensorFlow Serving.
    return NotStartedError(
        f"The batch scheduling queue to which this task was submitted is full; {reason}",
    )
