"""Waiting in an event loop for what threads finish, without a thread for each that waits.

A batch answers many requests at once: the loop is woken once for all that are done by then.
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

from timonel.serving.status import outcome

AT_ONCE_BYTES: Final = 64 * 2**10
"""Of this size, messages are read and written in less time than another thread is woken, and text
in some 0.2 ms."""

_LARGE_BYTES: Final = 2**20
_LARGE_THREADS: Final = 2

T = TypeVar("T")


class SizedPool(ThreadPoolExecutor):
    """Threads that read and write messages, and two more for those beyond 1 MiB.

    A large message may take a second, which messages of middling size must not wait for.

    Args:
        threads: Threads for messages of middling size.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads, "compute")
        self._large = ThreadPoolExecutor(_LARGE_THREADS, "large")

    def for_size(self, size: int) -> ThreadPoolExecutor:
        """Return the threads for a message of so many bytes."""
        return self._large if size > _LARGE_BYTES else self

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End both."""
        self._large.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


def pool_for(pool: Executor, size: int) -> Executor:
    """Return where work on a message of so many bytes is done."""
    return pool.for_size(size) if isinstance(pool, SizedPool) else pool


async def finished(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait until a future is done.

    Cancelling the wait cancels the future.

    Args:
        future: What a thread will finish.
        timeout_s: For how many seconds to wait at most.

    Returns:
        False if it is not done in time.
    """
    if future.done():
        return True
    wakeups = _wakeups()
    waiter = wakeups.loop.create_future()
    future.add_done_callback(partial(wakeups.add, lambda _: _wake(waiter)))
    timer = None if timeout_s is None else wakeups.loop.call_later(timeout_s, _wake, waiter)
    try:
        await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise
    finally:
        if timer is not None:
            timer.cancel()
    return future.done()


def when_finished(future: Future[T], call: Callable[[Future[T]], None]) -> None:
    """Have a function called in the running loop, soon after a future is done; it must not raise.

    For what would wait for that and do nothing else: a coroutine costs several times as much.

    Args:
        future: What a thread will finish.
        call: Called with the future. It must not refer to it: the future refers to its callbacks.
    """
    future.add_done_callback(partial(_wakeups().add, call))


async def in_pool(pool: Executor, function: Callable[..., T], *args: Any) -> T:
    """Return what a function returns that would hold up the loop."""
    future = pool.submit(function, *args)
    await finished(future)
    return outcome(future)


async def by_size(pool: Executor, size: int, function: Callable[..., T], *args: Any) -> T:
    """Return what a function returns, which takes as long as ``size`` says."""
    if size <= AT_ONCE_BYTES:
        return function(*args)
    return await in_pool(pool_for(pool, size), function, *args)


class _Wakeups:
    """What is to be called in a loop. `add` is called by any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[[Future[Any]], None], Future[Any]]] = deque()
        self._asked = False

    def add(self, call: Callable[[Future[Any]], None], future: Future[Any]) -> None:
        self._calls.append((call, future))
        if not self._asked:
            self._asked = True
            # A loop that has ended has nobody who waits.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._call_all)

    def _call_all(self) -> None:
        # First: what is added from now on asks again.
        self._asked = False
        while self._calls:
            call, future = self._calls.popleft()
            call(future)


_kept = threading.local()


def _wakeups() -> _Wakeups:
    loop = asyncio.get_running_loop()
    found: _Wakeups | None = getattr(_kept, "wakeups", None)
    if found is None or found.loop is not loop:
        found = _kept.wakeups = _Wakeups(loop)
    return found


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
