"""Requests and queues that form batches. Pure: time is an argument, in seconds.

`NaturalQueue` returns all queued requests up to a limit; `ParameterQueue` decides as TensorFlow
Serving does. Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

import abc
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from timonel.serving.runtimes.base import Pending
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError, invalid_argument

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

    @property
    def is_waiting(self) -> bool:
        """Whether the request is neither running nor cancelled."""
        return self._claimed is None

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


@dataclass(frozen=True)
class Batch:
    """A batch taken from a queue, and expired requests.

    Args:
        pieces: The batch, in order of arrival; empty if there is nothing to compute.
        late: Requests to reject, because their deadlines have passed.
    """

    pieces: tuple[Piece, ...]
    late: tuple[BatchRequest, ...] = ()


class Queue(abc.ABC):
    """A queue of requests whose rows may be computed together."""

    @abc.abstractmethod
    def add(self, request: BatchRequest, now: float) -> None:
        """Add a request.

        Raises:
            StatusError: The request is too large, or the queue is full.
        """

    @abc.abstractmethod
    def due_at(self) -> float | None:
        """Return when the next batch is due; None if empty."""

    @abc.abstractmethod
    def take(self, now: float) -> Batch:
        """Take the next batch; call it only when one is due."""

    @abc.abstractmethod
    def remove(self, request: BatchRequest) -> None:
        """Remove a request, if it is queued."""

    @abc.abstractmethod
    def close(self) -> None:
        """Make all queued requests due at once."""


def take_rows(requests: deque[BatchRequest], max_rows: int, now: float) -> Batch:
    """Take a batch from the left, within a limit of rows.

    At least one request is taken, however many rows it has.

    Args:
        requests: Queued requests in order; taken and expired ones are removed.
        max_rows: The maximum number of rows.
        now: The present time.
    """
    pieces: list[Piece] = []
    late: list[BatchRequest] = []
    rows = 0
    while requests:
        request = requests[0]
        if request.is_late(now):
            late.append(request)
        elif pieces and rows + request.rows > max_rows:
            break
        else:
            pieces.append(Piece(request, 0, request.rows))
            rows += request.rows
        requests.popleft()
    return Batch(tuple(pieces), tuple(late))


class QueueCapacity:
    """Limit of queued requests in all queues of one version.

    Args:
        limit: The maximum number of requests.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class NaturalQueue(Queue):
    """Queue without delay: batches take all requests within a row limit.

    A request larger than the limit forms a batch alone.

    Args:
        capacity: The limit of requests, shared with the version's other queues.
        max_rows: Returns the maximum rows; called for each batch.
    """

    def __init__(self, capacity: QueueCapacity, max_rows: Callable[[], int]) -> None:
        self._capacity = capacity
        self._max_rows = max_rows
        self._requests: deque[BatchRequest] = deque()

    def add(self, request: BatchRequest, now: float) -> None:  # noqa: ARG002 - the interface's
        """Add a request, if there is capacity."""
        used, limit = self._capacity.used, self._capacity.limit
        if used >= limit:
            raise _full(f"currently {used} tasks enqueued and max_queued is {limit}")
        self._capacity.used += 1
        self._requests.append(request)

    def due_at(self) -> float | None:
        """Return the first request's arrival: queued requests are due at once."""
        return self._requests[0].arrived if self._requests else None

    def take(self, now: float) -> Batch:
        """Take the next batch, and expired requests."""
        batch = take_rows(self._requests, self._max_rows(), now)
        self._capacity.used -= len(batch.pieces) + len(batch.late)
        return batch

    def remove(self, request: BatchRequest) -> None:
        """Remove a request."""
        if request in self._requests:
            self._requests.remove(request)
            self._capacity.used -= 1

    def close(self) -> None:
        """Do nothing: all requests are due at once."""


@dataclass(frozen=True)
class QueueLimits:
    """TensorFlow Serving's options of a queue.

    Args:
        request_rows: Maximum rows of a request.
        batch_rows: Maximum rows of a batch.
        timeout_s: Seconds that a batch waits to be filled.
        batches: Maximum number of queued batches.
        split: Whether a request may be split over several batches.
    """

    request_rows: int
    batch_rows: int
    timeout_s: float
    batches: int
    split: bool = False


@dataclass(eq=False)
class _GrowingBatch:
    """A growing batch; its timeout starts with its first request."""

    since: float
    pieces: list[Piece]
    rows: int = 0


class ParameterQueue(Queue):
    """TensorFlow Serving's queue: forms batches on arrival; only the last is open.

    Args:
        limits: Sizes and times.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._batches: deque[_GrowingBatch] = deque()
        self._closed = False

    def add(self, request: BatchRequest, now: float) -> None:
        """Add a request to the open batch, or to the next ones."""
        limits = self._limits
        if request.rows > limits.request_rows:
            raise invalid_argument(
                f"Task size {request.rows} is larger than maximum input batch size "
                f"{limits.request_rows}"
            )
        self._check_capacity(request)
        for piece in self._split(request):
            if not self._batches or self._open_rows + piece.rows > limits.batch_rows:
                self._batches.append(_GrowingBatch(now, []))
            self._batches[-1].pieces.append(piece)
            self._batches[-1].rows += piece.rows

    def due_at(self) -> float | None:
        """Return when the first batch is full or reaches its timeout."""
        if not self._batches:
            return None
        first = self._batches[0]
        full = len(self._batches) > 1 or first.rows >= self._limits.batch_rows
        return first.since + (0 if full or self._closed else self._limits.timeout_s)

    def take(self, now: float) -> Batch:
        """Take the first batch."""
        pieces = self._batches.popleft().pieces
        # A batch is computed as a whole unless all of its requests are late.
        if all(piece.request.is_late(now) for piece in pieces):
            return Batch((), tuple(piece.request for piece in pieces))
        return Batch(tuple(pieces))

    def remove(self, request: BatchRequest) -> None:
        """Remove a request, with all its pieces."""
        for batch in list(self._batches):
            kept = [piece for piece in batch.pieces if piece.request is not request]
            if len(kept) < len(batch.pieces):
                batch.pieces = kept
                batch.rows = sum(piece.rows for piece in kept)
                if not kept:
                    self._batches.remove(batch)

    def close(self) -> None:
        """Make the open batch due at once."""
        self._closed = True

    @property
    def _open_rows(self) -> int:
        return self._batches[-1].rows if self._batches else 0

    def _split(self, request: BatchRequest) -> list[Piece]:
        size = self._limits.batch_rows
        first = size - self._open_rows
        if not self._limits.split or request.rows <= first:
            return [Piece(request, 0, request.rows)]
        # Fill the open batch first.
        edges = [0, *range(first or size, request.rows, size), request.rows]
        return [Piece(request, *edge) for edge in itertools.pairwise(edges)]

    def _check_capacity(self, request: BatchRequest) -> None:
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
    return StatusError(
        Code.UNAVAILABLE,
        f"The batch scheduling queue to which this task was submitted is full; {reason}",
    )
