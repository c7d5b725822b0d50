from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.waiting import until
from timonel.serving.futures import when_finished
from timonel.serving.status import Code, StatusError


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as made:
        yield made


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)


async def done(futures):
    """Wait for futures."""
    left, ended = set(futures), asyncio.Event()

    def end(future):
        left.remove(future)
        if not left:
            ended.set()

    for future in futures:
        when_finished(future, end)
    await ended.wait()


def test_one_wakeup_for_all_that_are_done_at_once(monkeypatch):
    futures = [Future() for _ in range(100)]
    wakeups = []

    async def main():
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda f: (wakeups.append(f), wake(f)))
        waiting = asyncio.create_task(done(futures))
        await asyncio.sleep(0)
        # While this loop is busy.
        in_thread(lambda: [future.set_result(None) for future in futures])
        await waiting

    asyncio.run(main())
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
                await done(futures)

    with ThreadPoolExecutor(4) as pool:
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
def test_what_a_thread_worked_on_is_freed_without_garbage_collection(pool, error):
    kept = []

    def work():
        content = Kept()
        kept.append(weakref.ref(content))
        if error is not None:
            raise StatusError(error.code, error.message)
        return content

    async def main():
        await done([pool.submit(work)])
        # The thread lets go of the future after it has told of it.
        await done([pool.submit(int)])

    with no_garbage_collection():
        asyncio.run(main())
        until(lambda: kept[0]() is None, 10)
