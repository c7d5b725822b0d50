"""Whoever closes waits for each request, also for one that is given up."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from timonel.serving.drain import await_settled


def test_all_kinds_of_ends() -> None:
    futures: list[Future[int]] = [Future() for _ in range(4)]
    futures[0].set_result(1)
    futures[1].cancel()
    ends = [lambda: futures[2].set_exception(OSError()), futures[3].cancel]
    timers = [threading.Timer(0.05 * (i + 1), end) for i, end in enumerate(ends)]
    for timer in timers:
        timer.start()
    assert await_settled(futures)
    assert all(future.done() for future in futures)
    assert await_settled([])


def test_time_may_be_over_first() -> None:
    done: Future[int] = Future()
    done.set_result(1)
    assert not await_settled([Future(), done], timeout_s=0.02)
    assert await_settled([done], timeout_s=0.0)
