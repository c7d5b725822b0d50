"""Threads that compute batches, shared by all models of a process.

Queues take turns, one batch each, so that a busy queue does not starve the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from timonel.serving.batching.queue import Batch, BatchRequest, Queue


class QueueKey(NamedTuple):
    """Key of a queue: requests for the same signature, outputs and shapes.

    The batching model that owns the queue has a method ``compute(key, batch)``, which completes all
    requests of a batch and does not raise.
    """

    owner: Any
    signature: str
    outputs: tuple[str, ...]
    group: tuple[Any, ...]


class Scheduler:
    """Queues in round-robin order; empty queues are dropped. Pure: time is an argument, in seconds.

    At most ``slots`` batches are computed at once. Not thread-safe: the owner holds a lock.

    Args:
        slots: Maximum number of batches to compute at once.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running = 0
        self._queues: dict[QueueKey, Queue] = {}

    def add(
        self, key: QueueKey, make: Callable[[], Queue], request: BatchRequest, now: float
    ) -> None:
        """Add a request to its queue.

        Args:
            key: The queue's key.
            make: Creates the queue if it does not exist.
            request: The request to add.
            now: The present time.

        Raises:
            StatusError: The queue rejects the request.
        """
        queue = self._queues.get(key) or make()
        queue.add(request, now)
        self._queues[key] = queue

    def take(self, now: float) -> tuple[QueueKey, Batch] | None:
        """Take the next batch, if any is due and a slot free.

        A batch with pieces holds a slot until `release`.
        """
        if self.running >= self.slots:
            return None
        due = (key for key, queue in self._queues.items() if _is_due(queue, now))
        key = next(due, None)
        if key is None:
            return None
        queue = self._queues.pop(key)
        batch = queue.take(now)
        if queue.due_at() is not None:
            self._queues[key] = queue
        self.running += bool(batch.pieces)
        return key, batch

    def release(self) -> None:
        """Free the slot of a computed batch."""
        self.running -= 1

    def next_due_at(self) -> float | None:
        """Return when a free slot gets its next batch, if any."""
        if self.running >= self.slots or not self._queues:
            return None
        return min(due for queue in self._queues.values() if (due := queue.due_at()) is not None)

    def remove(self, key: QueueKey, request: BatchRequest) -> None:
        """Remove a request, if it is still queued."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.remove(request)
            if queue.due_at() is None:
                del self._queues[key]

    def close(self, owner: object) -> None:
        """Make all requests in the queues of ``owner`` due at once."""
        for key, queue in self._queues.items():
            if key.owner is owner:
                queue.close()


def _is_due(queue: Queue, now: float) -> bool:
    due_at = queue.due_at()
    return due_at is not None and due_at <= now


class Batcher:
    """Thread pool that computes at most ``slots`` batches at once. Thread-safe.

    Threads start when first needed, so that a process can fork before, and end when the last model
    is detached.

    Args:
        slots: Maximum number of batches to compute at once.
        name: The threads' name.
        clock: Returns the present time in seconds.
    """

    def __init__(
        self,
        slots: int,
        name: str = "batch_threads",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._clock = clock
        self._scheduler = Scheduler(slots)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._attaching = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._models = 0

    def attach(self) -> None:
        """Add a model."""
        with self._attaching:
            self._models += 1

    def detach(self) -> None:
        """Remove a model without pending requests; the last ends the threads."""
        with self._attaching:
            self._models -= 1
            if self._models:
                return
            with self._lock:
                self._changed.notify_all()
            for thread in self._threads:
                thread.join()
            self._threads.clear()

    def submit(self, key: QueueKey, make: Callable[[], Queue], request: BatchRequest) -> None:
        """Queue a request.

        Raises:
            StatusError: The queue rejects the request.
        """
        with self._lock:
            self._scheduler.add(key, make, request, self._clock())
            self._wake()

    def remove(self, key: QueueKey, request: BatchRequest) -> None:
        """Remove a request that is still queued."""
        with self._lock:
            self._scheduler.remove(key, request)

    def flush(self, owner: object) -> None:
        """Make all requests of a model due at once."""
        with self._lock:
            self._scheduler.close(owner)
            self._wake()

    def _wake(self) -> None:
        """Wake a thread to look for work; called with the lock held."""
        if self._scheduler.next_due_at() is None:
            return
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._work, name=f"{self._name}_{number}", daemon=True)
                for number in range(self._scheduler.slots)
            ]
            for thread in self._threads:
                thread.start()
        self._changed.notify()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            key, batch = work
            try:
                key.owner.compute(key, batch)
            finally:
                if batch.pieces:
                    with self._lock:
                        self._scheduler.release()

    def _next(self) -> tuple[QueueKey, Batch] | None:
        with self._lock:
            while self._models:
                now = self._clock()
                work = self._scheduler.take(now)
                if work is not None:
                    # Another batch may be due, and another slot free.
                    self._wake()
                    return work
                due_at = self._scheduler.next_due_at()
                self._changed.wait(None if due_at is None else max(0.0, due_at - now))
        return None
