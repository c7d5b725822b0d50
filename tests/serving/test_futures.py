from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.waiting import until
from timonel.serving.futures import finished, in_pool, when_finished
from timonel.serving.status import Code, StatusError


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as made:
        yield made


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


class Kept:
    """Stands for what a request was parsed into."""


@contextlib.contextmanager
def no_garbage_collection():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [StatusError(Code.INVALID_ARGUMENT, "no"), None])
@pytest.mark.parametrize("way", ["wait", "call"])
def test_what_a_thread_worked_on_is_freed_without_garbage_collection(pool, way, error):
    kept = []

    def work():
        content = Kept()
        kept.append(weakref.ref(content))
        if error is not None:
            raise StatusError(error.code, error.message)
        return content

    async def wait():
        with contextlib.suppress(StatusError):
            await in_pool(pool, work)

    async def call():
        done = asyncio.Event()
        when_finished(pool.submit(work), lambda _: done.set())
        await done.wait()

    async def both():
        await (wait() if way == "wait" else call())
        # The thread lets go of the future after it has told of it.
        await in_pool(pool, int)

    with no_garbage_collection():
        asyncio.run(both())
        until(lambda: kept[0]() is None, 10)
