"""TensorFlow Serving's batching queue. Pure: time is an argument, in seconds."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Generic

from timonel.serving.batching.queue import FULL, Piece, Queue, T, Taken
from timonel.serving.status import Code, StatusError, invalid_argument


@dataclass(frozen=True)
class Limits:
    """TensorFlow Serving's options of a queue.

    Args:
        task_rows: Maximum rows of a task.
        batch_rows: Maximum rows of a batch.
        timeout_s: Seconds that a batch waits to be filled.
        batches: Maximum number of queued batches.
        split: Whether a task may be split over several batches.
    """

    task_rows: int
    batch_rows: int
    timeout_s: float
    batches: int
    split: bool = False


@dataclass(eq=False)
class _Waiting(Generic[T]):
    """A growing batch; its timeout starts with its first task."""

    since: float
    pieces: list[Piece[T]]
    rows: int = 0


class ParameterQueue(Queue[T]):
    """Queue that forms batches on arrival; only the last is open.

    Args:
        limits: Sizes and times.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._batches: deque[_Waiting[T]] = deque()
        self._closed = False

    def add(self, task: T, now: float) -> None:
        """Add a task to the open batch, or to the next ones."""
        limits = self._limits
        if task.rows > limits.task_rows:
            raise invalid_argument(
                f"Task size {task.rows} is larger than maximum input batch size {limits.task_rows}"
            )
        if limits.split:
            self._check_split_room(task)
        elif self._open_rows + task.rows > limits.task_rows and self._count >= limits.batches:
            raise StatusError(
                Code.UNAVAILABLE,
                f"{FULL}currently {self._count} batches enqueued and max_enqueued_batches is "
                f"{limits.batches}",
            )
        for piece in self._cut(task):
            if not self._batches or self._open_rows + piece.rows > limits.batch_rows:
                self._batches.append(_Waiting(now, []))
            self._batches[-1].pieces.append(piece)
            self._batches[-1].rows += piece.rows

    def due_at(self) -> float | None:
        """Return when the first batch is full or reaches its timeout."""
        if not self._batches:
            return None
        first = self._batches[0]
        full = len(self._batches) > 1 or first.rows >= self._limits.batch_rows
        return first.since + (0 if full or self._closed else self._limits.timeout_s)

    def take(self, now: float) -> Taken[T]:
        """Take the first batch."""
        pieces = self._batches.popleft().pieces
        # A batch is computed as a whole unless all of its tasks are late.
        if all(piece.task.is_late(now) for piece in pieces):
            return Taken((), tuple(piece.task for piece in pieces))
        return Taken(tuple(pieces))

    def remove(self, task: T) -> None:
        """Remove a task, with all its pieces."""
        for batch in list(self._batches):
            kept = [piece for piece in batch.pieces if piece.task is not task]
            if len(kept) < len(batch.pieces):
                batch.pieces = kept
                batch.rows = sum(piece.rows for piece in kept)
                if not kept:
                    self._batches.remove(batch)

    def close(self) -> None:
        """Make the open batch due at once."""
        self._closed = True

    @property
    def _count(self) -> int:
        # An empty open batch counts.
        return max(1, len(self._batches))

    @property
    def _open_rows(self) -> int:
        return self._batches[-1].rows if self._batches else 0

    def _cut(self, task: T) -> list[Piece[T]]:
        size = self._limits.batch_rows
        first = size - self._open_rows
        if not self._limits.split or task.rows <= first:
            return [Piece(task, 0, task.rows)]
        # Fill the open batch first.
        edges = [0, *range(first or size, task.rows, size), task.rows]
        return [Piece(task, *edge) for edge in itertools.pairwise(edges)]

    def _check_split_room(self, task: T) -> None:
        limits = self._limits
        room = (limits.batches - self._count) * limits.batch_rows
        room += limits.batch_rows - self._open_rows
        if task.rows > room:
            raise StatusError(
                Code.UNAVAILABLE,
                f"{FULL}task size is {task.rows} but scheduling capacity is only {room} "
                f"(num_enqueued_batches={self._count}, max_enqueued_batches={limits.batches}, "
                f"open_batch_size={self._open_rows}, "
                f"max_execution_batch_size={limits.batch_rows})",
            )
