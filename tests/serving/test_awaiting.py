from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from timonel.serving.awaiting import finished, in_pool


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)


def test_what_is_done_is_not_waited_for():
    future = Future()
    future.set_result(1)
    assert asyncio.run(finished(future))


def test_one_wakeup_for_all_that_are_done_at_once(monkeypatch):
    futures = [Future() for _ in range(100)]
    wakeups = []

    async def main():
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda f: (wakeups.append(f), wake(f)))
        waiting = asyncio.gather(*map(finished, futures))
        await asyncio.sleep(0)
        # While this loop is busy.
        in_thread(lambda: [future.set_result(None) for future in futures])
        return await waiting

    assert all(asyncio.run(main()))
    assert len(wakeups) == 1


def test_threads_finish_while_the_loop_wakes():
    """Nobody is forgotten, whenever a future is done."""
    rounds = 300

    async def main(pool):
        for _ in range(rounds):
            futures = [Future() for _ in range(4)]
            for future in futures:
                pool.submit(future.set_result, None)
            async with asyncio.timeout(30):
                assert all(await asyncio.gather(*map(finished, futures)))

    with ThreadPoolExecutor(4) as pool:
        asyncio.run(main(pool))


def test_who_stops_waiting_gives_up():
    async def main(future):
        waiting = asyncio.create_task(finished(future))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main(future := Future()))
    assert future.cancelled()


def test_time_may_be_over_first():
    future = Future()
    assert not asyncio.run(finished(future, 0.0))
    assert not future.done()
    # Its loop is gone by now.
    future.set_result(None)


def test_a_pool_answers_or_fails():
    async def main(pool):
        assert await in_pool(pool, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_pool(pool, divmod, 1, 0)

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main(pool))
