"""Queues of tasks that form batches. Pure: time is an argument, in seconds.

A task is one request's rows. `NaturalQueue` returns all queued tasks up to a limit;
`tfserving_queue` has the queue that decides as TensorFlow Serving does. Not thread-safe: the owner
holds a lock.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from timonel.serving.status import Code, StatusError

FULL = "The batch scheduling queue to which this task was submitted is full; "


class Task:
    """A queued request; compared by identity.

    Args:
        rows: The number of rows.
        arrived: The time of arrival.
        deadline: Time after which the response is useless; None for never.
    """

    __slots__ = ("arrived", "deadline", "rows")

    def __init__(self, rows: int, arrived: float, deadline: float | None = None) -> None:
        self.rows = rows
        self.arrived = arrived
        self.deadline = deadline

    def is_late(self, now: float) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and self.deadline <= now


T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Piece(Generic[T]):
    """Rows ``start`` to ``stop`` of a task; all unless it was split."""

    task: T
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Taken(Generic[T]):
    """A batch taken from a queue, and expired tasks.

    Args:
        pieces: One batch, in order of arrival; empty if there is nothing to compute.
        late: Tasks to reject, because their deadlines have passed.
    """

    pieces: tuple[Piece[T], ...]
    late: tuple[T, ...] = ()

    @property
    def tasks(self) -> list[T]:
        """Tasks with rows in the batch."""
        return [piece.task for piece in self.pieces]


class Queue(abc.ABC, Generic[T]):
    """A queue of tasks whose rows may be computed together."""

    @abc.abstractmethod
    def add(self, task: T, now: float) -> None:
        """Add a task.

        Raises:
            StatusError: The task is too large, or the queue is full.
        """

    @abc.abstractmethod
    def due_at(self) -> float | None:
        """Return when the next batch is due; None if empty."""

    @abc.abstractmethod
    def take(self, now: float) -> Taken[T]:
        """Take the next batch; call it only when one is due."""

    @abc.abstractmethod
    def remove(self, task: T) -> None:
        """Remove a task, if it is queued."""

    @abc.abstractmethod
    def close(self) -> None:
        """Make all queued tasks due at once."""


class Room:
    """Limit of queued tasks in all queues of one version.

    Args:
        limit: The maximum number of tasks.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def enter(self) -> None:
        """Count a queued task.

        Raises:
            StatusError: The limit is reached.
        """
        if self.used >= self.limit:
            raise StatusError(
                Code.UNAVAILABLE,
                f"{FULL}currently {self.used} tasks enqueued and max_queued is {self.limit}",
            )
        self.used += 1

    def leave(self) -> None:
        """Remove a task from the count."""
        self.used -= 1


def cut(tasks: deque[T], limit: int, now: float) -> Taken[T]:
    """Take a batch from the left, within a limit of rows.

    At least one task is taken, however many rows it has.

    Args:
        tasks: Queued tasks in order; taken and expired ones are removed.
        limit: The maximum number of rows.
        now: The present time.
    """
    pieces: list[Piece[T]] = []
    late: list[T] = []
    rows = 0
    while tasks:
        task = tasks[0]
        if task.is_late(now):
            late.append(task)
        elif pieces and rows + task.rows > limit:
            break
        else:
            pieces.append(Piece(task, 0, task.rows))
            rows += task.rows
        tasks.popleft()
    return Taken(tuple(pieces), tuple(late))


class NaturalQueue(Queue[T]):
    """Queue without delay: batches take all tasks within a row limit.

    A task larger than the limit forms a batch alone.

    Args:
        room: The limit of tasks, shared with the version's other queues.
        limit: Returns the maximum rows; called for each batch.
    """

    def __init__(self, room: Room, limit: Callable[[], int]) -> None:
        self._room = room
        self._limit = limit
        self._tasks: deque[T] = deque()

    def add(self, task: T, now: float) -> None:  # noqa: ARG002 - the interface's
        """Add a task, if there is room."""
        self._room.enter()
        self._tasks.append(task)

    def due_at(self) -> float | None:
        """Return the first task's arrival: queued tasks are due at once."""
        return self._tasks[0].arrived if self._tasks else None

    def take(self, now: float) -> Taken[T]:
        """Take the next batch, and expired tasks."""
        taken = cut(self._tasks, self._limit(), now)
        for _ in (*taken.pieces, *taken.late):
            self._room.leave()
        return taken

    def remove(self, task: T) -> None:
        """Remove a task."""
        if task in self._tasks:
            self._tasks.remove(task)
            self._room.leave()

    def close(self) -> None:
        """Do nothing: all tasks are due at once."""
