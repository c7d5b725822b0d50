"""Load versions in daemon threads, a few at a time, each with a time limit.

A thread that loads a model cannot be interrupted: reading a pipe or an endless initializer holds it
forever. Such a load delays no other one, and it ends with the process.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from timonel.serving.manager.catalogue import Servable
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
SLOW_S = 30.0
"""Time after which a load no longer delays other loads, nor the start of the server."""

Post = Callable[[Callable[[], None]], None]


@dataclass(eq=False)
class VersionLoad:
    """One load.

    Args:
        name: What is loaded, for the log.
        work: Loads the version; called in a thread.
        ended: Called with the result.
        expired: Called before that if the load exceeds its time limit.
    """

    name: str
    work: Callable[[], Servable]
    ended: Callable[[Future[Servable]], None]
    expired: Callable[[StatusError], None]
    began: float = 0.0
    is_slow: bool = False
    result: Future[Servable] = field(default_factory=Future)

    def run(self, post: Post) -> None:
        """Load the version, and post the end."""
        try:
            self.result.set_result(self.work())
        except BaseException as error:  # noqa: BLE001 - becomes the version's status
            self.result.set_exception(error)
        post(lambda: self.ended(self.result))


class Loads:
    """Waiting and running loads. Owned by the manager's thread, which makes all callbacks.

    Args:
        limit: Loads at the same time, apart from slow ones.
        timeout_s: Time limit in seconds for one load; None for no limit.
        post: Has a function called in the manager's thread.
    """

    def __init__(self, limit: int, timeout_s: float | None, post: Post) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._post = post
        self._waiting: deque[VersionLoad] = deque()
        self._running: list[VersionLoad] = []
        self._expired: list[VersionLoad] = []

    def submit(self, load: VersionLoad) -> None:
        """Load a version once `advance` finds a free thread."""
        self._waiting.append(load)

    def advance(self, now: float) -> None:
        """Expire loads that exceed the time limit, and start waiting ones."""
        self._running = [load for load in self._running if not load.result.done()]
        self._expired = [load for load in self._expired if not load.result.done()]
        for load in list(self._running):
            self._check(load, now - load.began)
        while self._waiting and self._quick < self._limit:
            load = self._waiting.popleft()
            load.began = now
            self._running.append(load)
            threading.Thread(target=load.run, args=(self._post,), name="load", daemon=True).start()

    def are_busy(self) -> bool:
        """Return whether loads are waiting or running, apart from slow ones."""
        return any(self._waiting) or self._quick > 0

    def next_change(self, now: float) -> float:
        """Return the time at which `advance` has work, unless a load ends before."""
        times = [each.began + SLOW_S for each in self._running]
        if self._timeout_s is not None:
            times += [each.began + self._timeout_s for each in self._running]
        return min((time for time in times if time > now), default=math.inf)

    def cancel(self) -> None:
        """Cancel waiting loads, and leave running ones to the end of the process."""
        for load in self._waiting:
            load.result.cancel()
            load.ended(load.result)
        self._waiting.clear()

    @property
    def _quick(self) -> int:
        return sum(not each.is_slow for each in self._running)

    def _check(self, load: VersionLoad, passed_s: float) -> None:
        if not load.is_slow and passed_s >= SLOW_S:
            load.is_slow = True
            _LOG.warning("Still loading %s after %g s.", load.name, SLOW_S)
        if self._timeout_s is not None and passed_s >= self._timeout_s:
            self._running.remove(load)
            self._expired.append(load)
            load.expired(
                StatusError(
                    Code.DEADLINE_EXCEEDED,
                    f"the load has not ended after {self._timeout_s:g} s, its time limit; such "
                    f"loads: {len(self._expired)}",
                )
            )
