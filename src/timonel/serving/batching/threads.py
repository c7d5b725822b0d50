"""Threads that compute batches, shared by all models of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from timonel.serving.batching.queue import Queue, Taken, Task
from timonel.serving.batching.schedule import Scheduler, Work


class Owner(Protocol):
    """Owner of queues, which computes their batches."""

    def compute(self, key: Any, taken: Taken[Any]) -> None:
        """Complete all taken tasks; must not raise."""


class Key(Hashable, Protocol):
    """Key of a queue."""

    @property
    def owner(self) -> Owner:
        """Owner of the queue."""


class Batcher:
    """Thread pool that computes at most ``slots`` batches at once.

    Threads start when first needed, so that a process can fork before, and end when the last model
    is detached. Thread-safe.

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
        self._scheduler: Scheduler[Any, Any] = Scheduler(slots)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._life = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._users = 0

    @property
    def slots(self) -> int:
        """Maximum number of batches to compute at once."""
        return self._scheduler.slots

    def attach(self) -> None:
        """Add a model."""
        with self._life:
            self._users += 1

    def detach(self) -> None:
        """Remove a model without pending tasks; the last ends the threads."""
        with self._life:
            self._users -= 1
            if self._users:
                return
            with self._lock:
                self._changed.notify_all()
            for thread in self._threads:
                thread.join()
            self._threads.clear()

    def submit(self, key: Key, make: Callable[[], Queue[Any]], task: Task) -> None:
        """Queue a task.

        Raises:
            StatusError: The queue rejects the task.
        """
        with self._lock:
            self._scheduler.add(key, make, task, self._clock())
            self._wake()

    def remove(self, key: Key, task: Task) -> None:
        """Remove a task that is still queued."""
        with self._lock:
            self._scheduler.remove(key, task)

    def flush(self, owner: Owner) -> None:
        """Make all tasks of ``owner`` due at once."""
        with self._lock:
            self._scheduler.close(lambda key: key.owner is owner)
            self._wake()

    def _wake(self) -> None:
        """Wake a thread to look for work; called with the lock held."""
        if self._scheduler.next_due_at() is None:
            return
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._work, name=f"{self._name}_{number}", daemon=True)
                for number in range(self.slots)
            ]
            for thread in self._threads:
                thread.start()
        self._changed.notify()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            self._perform(work)

    def _next(self) -> Work[Any, Any] | None:
        with self._lock:
            while self._users:
                now = self._clock()
                work = self._scheduler.take(now)
                if work is not None:
                    # Another batch may be due, and another slot free.
                    self._wake()
                    return work
                due_at = self._scheduler.next_due_at()
                self._changed.wait(None if due_at is None else max(0.0, due_at - now))
        return None

    def _perform(self, work: Work[Any, Any]) -> None:
        try:
            work.key.owner.compute(work.key, work.taken)
        finally:
            if work.holds_slot:
                with self._lock:
                    self._scheduler.release()
