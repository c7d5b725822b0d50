"""Queues of tasks, and how batches are cut from them. Pure: time is an argument, in seconds.

A task is one request's rows. `NaturalQueue` hands out whatever is there; `parameterqueue` has the
one that decides as TensorFlow Serving does. None of this is thread-safe: the owner holds a lock.
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
    """What waits to be computed. Tasks are told apart by identity.

    Args:
        rows: How many rows it has.
        arrived: When it came.
        deadline: When its answer is worth nothing any more; none for never.
    """

    __slots__ = ("arrived", "deadline", "rows")

    def __init__(self, rows: int, arrived: float, deadline: float | None = None) -> None:
        self.rows = rows
        self.arrived = arrived
        self.deadline = deadline

    def is_late(self, now: float) -> bool:
        """Return whether its deadline has passed."""
        return self.deadline is not None and self.deadline <= now


T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Piece(Generic[T]):
    """The rows ``start`` to ``stop`` of a task; all of them unless it was split."""

    task: T
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Taken(Generic[T]):
    """What a queue gives up.

    Args:
        pieces: One batch, in the order of arrival; empty if there is nothing to compute.
        late: What is refused instead, as its deadline has passed.
    """

    pieces: tuple[Piece[T], ...]
    late: tuple[T, ...] = ()

    @property
    def tasks(self) -> list[T]:
        """Return the tasks whose rows are in the batch."""
        return [piece.task for piece in self.pieces]


class Queue(abc.ABC, Generic[T]):
    """Tasks whose rows may be computed together."""

    @abc.abstractmethod
    def add(self, task: T, now: float) -> None:
        """Queue a task.

        Raises:
            StatusError: It is too large, or there is no room.
        """

    @abc.abstractmethod
    def due_at(self) -> float | None:
        """Return when the next batch may be taken; none if nothing is queued."""

    @abc.abstractmethod
    def take(self, now: float) -> Taken[T]:
        """Give up the next batch; call it only when one is due."""

    @abc.abstractmethod
    def remove(self, task: T) -> None:
        """Forget a task; nothing happens if it is not, or no longer, queued."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let nothing wait any longer."""


class Room:
    """How many tasks may wait in all the queues of one version.

    Args:
        limit: That number.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def enter(self) -> None:
        """Count one more.

        Raises:
            StatusError: There is no room.
        """
        if self.used >= self.limit:
            raise StatusError(
                Code.UNAVAILABLE,
                f"{FULL}currently {self.used} tasks enqueued and max_queued is {self.limit}",
            )
        self.used += 1

    def leave(self) -> None:
        """Count one less."""
        self.used -= 1


def cut(tasks: deque[T], limit: int, now: float) -> Taken[T]:
    """Take a batch from the left: as many tasks as fit into a limit of rows, but one at least.

    Args:
        tasks: What waits, in order; loses what is taken and what is late.
        limit: How many rows.
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
    """Gives what is there, up to a limit of rows; a task that is larger goes alone.

    Args:
        room: Shared with the version's other queues.
        limit: Asked for the limit whenever a batch is taken.
    """

    def __init__(self, room: Room, limit: Callable[[], int]) -> None:
        self._room = room
        self._limit = limit
        self._tasks: deque[T] = deque()

    def add(self, task: T, now: float) -> None:  # noqa: ARG002 - the interface's
        """Queue a task, if there is room."""
        self._room.enter()
        self._tasks.append(task)

    def due_at(self) -> float | None:
        """Return a time that has passed: what is queued is due."""
        return self._tasks[0].arrived if self._tasks else None

    def take(self, now: float) -> Taken[T]:
        """Give up what fits, without what is late."""
        taken = cut(self._tasks, self._limit(), now)
        for _ in (*taken.pieces, *taken.late):
            self._room.leave()
        return taken

    def remove(self, task: T) -> None:
        """Forget a task."""
        if task in self._tasks:
            self._tasks.remove(task)
            self._room.leave()

    def close(self) -> None:
        """Nothing waits here anyway."""
