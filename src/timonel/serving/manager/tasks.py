"""Run blocking work in daemon threads, a few at a time.

A thread that loads a model or reads a folder cannot be interrupted: a pipe, an endless initializer
or a network file system holds it forever. Such a task soon holds up no other one, and it ends with
the process.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Post = Callable[[Callable[[], None]], None]


@dataclass(eq=False)
class ModelTask(Generic[T]):
    """One task.

    Args:
        name: What it is, for the log.
        expired: Called before that with the number of tasks that exceed the time limit, if it does.
    """

    name: str
    work: Callable[[], T]
    ended: Callable[[Future[T]], None]
    expired: Callable[[int], None] = lambda _: None
    began: float = 0.0
    is_slow: bool = False
    result: Future[T] = field(default_factory=Future)

    def start(self, post: Post) -> None:
        """Work in a thread, and post the end."""
        threading.Thread(target=self._run, args=(post,), name=self.name, daemon=True).start()

    def _run(self, post: Post) -> None:
        try:
            self.result.set_result(self.work())
        except BaseException as error:  # noqa: BLE001 - handled in the manager's thread
            self.result.set_exception(error)
        post(lambda: self.ended(self.result))


class Tasks:
    """Waiting and running tasks. Owned by the manager's thread, which makes all callbacks.

    Args:
        limit: Tasks at the same time, apart from those that have run for ``yield_s`` seconds.
        yield_s: Seconds after which another task starts beside one.
        post: Has a function called in the manager's thread.
        slow_s: Seconds after which the tasks are not busy with one; None for ``yield_s``.
        timeout_s: Time limit in seconds for one task; None for no limit.
        on_slow: Called with the name of a task that has become slow.
    """

    def __init__(
        self,
        limit: int,
        yield_s: float,
        post: Post,
        *,
        slow_s: float | None = None,
        timeout_s: float | None = None,
        on_slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limit = limit
        self._yield_s = yield_s
        self._slow_s = yield_s if slow_s is None else slow_s
        self._post = post
        self._timeout_s = timeout_s
        self._on_slow = on_slow
        self._waiting: deque[ModelTask[Any]] = deque()
        self._running: list[ModelTask[Any]] = []
        self._expired: list[ModelTask[Any]] = []

    def submit(self, task: ModelTask[Any]) -> None:
        """Run a task once `advance` finds a free thread."""
        self._waiting.append(task)

    def advance(self, now: float) -> None:
        """Expire tasks that exceed the time limit, and start waiting ones."""
        self._running = [task for task in self._running if not task.result.done()]
        self._expired = [task for task in self._expired if not task.result.done()]
        for task in list(self._running):
            self._check(task, now - task.began)
        while self._waiting and self._counted(now) < self._limit:
            task = self._waiting.popleft()
            task.began = now
            self._running.append(task)
            task.start(self._post)

    def are_busy(self) -> bool:
        """Return whether tasks are waiting or running, apart from slow ones."""
        return bool(self._waiting) or not all(each.is_slow for each in self._running)

    def next_change(self, now: float) -> float:
        """Return the time at which `advance` has work, unless a task ends before."""
        steps = (self._yield_s, self._slow_s)
        times = [each.began + step for each in self._running for step in steps]
        if self._timeout_s is not None:
            times += [each.began + self._timeout_s for each in self._running]
        return min((time for time in times if time > now), default=math.inf)

    def cancel(self) -> None:
        """Cancel waiting tasks, and leave running ones to the end of the process."""
        for task in self._waiting:
            task.result.cancel()
            task.ended(task.result)
        self._waiting.clear()

    def _counted(self, now: float) -> int:
        return sum(now < each.began + self._yield_s for each in self._running)

    def _check(self, task: ModelTask[Any], passed_s: float) -> None:
        if not task.is_slow and passed_s >= self._slow_s:
            task.is_slow = True
            self._on_slow(task.name)
        if self._timeout_s is not None and passed_s >= self._timeout_s:
            self._running.remove(task)
            self._expired.append(task)
            task.expired(len(self._expired))
