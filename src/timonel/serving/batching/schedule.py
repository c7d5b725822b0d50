"""Which batch is computed next. Pure: time is an argument, in seconds.

Queues take turns, batch by batch, so that a busy one does not starve the others, and no more than
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
    """What somebody must do now.

    Args:
        key: The queue it came from.
        taken: A batch, which holds a slot until `Scheduler.release`, or only late tasks.
    """

    key: K
    taken: Taken[T]

    @property
    def holds_slot(self) -> bool:
        """Whether there is something to compute."""
        return bool(self.taken.pieces)


class Scheduler(Generic[K, T]):
    """The queues in the order of their turns. A queue is there only while tasks are in it.

    Args:
        slots: How many batches may be computed at once.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running = 0
        self._queues: dict[K, Queue[T]] = {}

    def add(self, key: K, make: Callable[[], Queue[T]], task: T, now: float) -> None:
        """Queue a task.

        Args:
            key: Its queue.
            make: Makes that queue if it is not there.
            task: What to queue.
            now: The present time.

        Raises:
            StatusError: The queue refuses it.
        """
        queue = self._queues.get(key)
        if queue is not None:
            queue.add(task, now)
            return
        queue = make()
        queue.add(task, now)
        self._queues[key] = queue

    def take(self, now: float) -> Work[K, T] | None:
        """Return the work whose turn it is; none if nothing is due or all slots are taken."""
        if self.running >= self.slots:
            return None
        for key, queue in self._queues.items():
            due_at = queue.due_at()
            if due_at is not None and due_at <= now:
                return self._take_from(key, queue, now)
        return None

    def release(self) -> None:
        """Give back the slot of a batch that was computed."""
        self.running -= 1

    def next_due_at(self) -> float | None:
        """Return when there is work for a free slot; none if no slot is free or nothing queued."""
        if self.running >= self.slots or not self._queues:
            return None
        return min(due for queue in self._queues.values() if (due := queue.due_at()) is not None)

    def remove(self, key: K, task: T) -> None:
        """Forget a task; nothing happens if it is no longer queued."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.remove(task)
            if queue.due_at() is None:
                del self._queues[key]

    def close(self, belongs: Callable[[K], bool]) -> None:
        """Let nothing wait any longer in the queues whose key ``belongs``."""
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
