"""Choose the next batch to compute. Pure: time is an argument, in seconds.

Queues take turns, one batch each, so that a busy queue does not starve the others. At most
``slots`` batches are computed at once. Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from timonel.serving.batching.queue import Queue, Taken, Task

T = TypeVar("T", bound=Task)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Work(Generic[K, T]):
    """Tasks taken from a queue, to be processed now.

    Args:
        key: The queue's key.
        taken: A batch, which holds a slot until `Scheduler.release`, or only expired tasks.
    """

    key: K
    taken: Taken[T]

    @property
    def holds_slot(self) -> bool:
        """Whether there is a batch to compute."""
        return bool(self.taken.pieces)


class Scheduler(Generic[K, T]):
    """Queues in round-robin order; empty queues are dropped.

    Args:
        slots: Maximum number of batches to compute at once.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running = 0
        self._queues: dict[K, Queue[T]] = {}

    def add(self, key: K, make: Callable[[], Queue[T]], task: T, now: float) -> None:
        """Add a task to its queue.

        Args:
            key: The queue's key.
            make: Creates the queue if it does not exist.
            task: The task to add.
            now: The present time.

        Raises:
            StatusError: The queue rejects the task.
        """
        queue = self._queues.get(key)
        if queue is not None:
            queue.add(task, now)
            return
        queue = make()
        queue.add(task, now)
        self._queues[key] = queue

    def take(self, now: float) -> Work[K, T] | None:
        """Take the next work, if any is due and a slot free."""
        if self.running >= self.slots:
            return None
        for key, queue in self._queues.items():
            due_at = queue.due_at()
            if due_at is not None and due_at <= now:
                return self._take_from(key, queue, now)
        return None

    def release(self) -> None:
        """Free the slot of a computed batch."""
        self.running -= 1

    def next_due_at(self) -> float | None:
        """Return when a free slot gets its next batch, if any."""
        if self.running >= self.slots or not self._queues:
            return None
        return min(due for queue in self._queues.values() if (due := queue.due_at()) is not None)

    def remove(self, key: K, task: T) -> None:
        """Remove a task, if it is still queued."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.remove(task)
            if queue.due_at() is None:
                del self._queues[key]

    def close(self, belongs: Callable[[K], bool]) -> None:
        """Make all tasks due at once in the queues whose key ``belongs``."""
        for key, queue in self._queues.items():
            if belongs(key):
                queue.close()

    def _take_from(self, key: K, queue: Queue[T], now: float) -> Work[K, T]:
        work = Work(key, queue.take(now))
        del self._queues[key]
        if queue.due_at() is not None:
            self._queues[key] = queue
        if work.holds_slot:
            self.running += 1
        return work
