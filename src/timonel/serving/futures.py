"""Call functions in an event loop when futures of threads are done.

A batch answers many requests at once; the loop wakes up once for all futures that are done by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

AT_ONCE_BYTES: Final = 64 * 2**10
"""Size limit for handling a message in the event loop.

Parsing or serializing a smaller message takes less time than waking another thread; text takes
about 0.2 ms.
"""

_LARGE_BYTES: Final = 2**20
_LARGE_THREADS: Final = 2

T = TypeVar("T")


class SizedPool(ThreadPoolExecutor):
    """Thread pool for messages; separate threads handle those over 1 MiB.

    A large message may take a second; medium-sized ones must not wait for it.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads, "compute")
        self.large = ThreadPoolExecutor(_LARGE_THREADS, "large")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down both pools."""
        self.large.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


def pool_for(pool: Executor, size: int) -> Executor:
    """Return the executor for a message of ``size`` bytes."""
    return pool.large if isinstance(pool, SizedPool) and size > _LARGE_BYTES else pool


def when_finished(future: Future[T], call: Callable[[Future[T]], None]) -> None:
    """Call a function in the running loop once a future is done.

    Cheaper than a coroutine that only awaits the future, which costs several times as much.

    Args:
        future: A future that a thread completes.
        call: Called with the future; must not raise. It must not hold a reference to the future,
            because the future refers to its callbacks.
    """
    future.add_done_callback(partial(_wakeups().add, call))


class _Wakeups:
    """Pending callbacks of an event loop. `add` is thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[[Future[Any]], None], Future[Any]]] = deque()
        self._scheduled = False

    def add(self, call: Callable[[Future[Any]], None], future: Future[Any]) -> None:
        self._calls.append((call, future))
        if not self._scheduled:
            self._scheduled = True
            # A closed loop has no waiters.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._call_all)

    def _call_all(self) -> None:
        # Reset first, so that a later `add` wakes the loop again.
        self._scheduled = False
        while self._calls:
            call, future = self._calls.popleft()
            call(future)


_local = threading.local()


def _wakeups() -> _Wakeups:
    loop = asyncio.get_running_loop()
    found: _Wakeups | None = getattr(_local, "wakeups", None)
    if found is None or found.loop is not loop:
        found = _local.wakeups = _Wakeups(loop)
    return found
