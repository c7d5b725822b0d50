"""Work at the end of a loop's turn: once, in order, and also when the loop goes away."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
import uvloop

from timonel.serving.turns import TurnBatching, at_end_of_turn

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request):
    made = request.param()
    yield made
    made.close()


def test_nothing_is_promised_without_a_loop():
    done = []
    assert not at_end_of_turn(lambda: done.append(1))
    gc.collect()
    assert not done


def test_it_is_done_once_a_turn_in_order(loop):
    done = []

    def first():
        done.append("first")

    def second():
        done.append("second")

    async def turns():
        for _ in range(2):
            assert at_end_of_turn(first)
            assert at_end_of_turn(second)
            assert at_end_of_turn(first)
            assert not done
            await asyncio.sleep(0)
            assert done == ["first", "second"]
            done.clear()

    loop.run_until_complete(turns())


def test_what_others_of_a_turn_add_is_done_with_it(loop):
    done = []

    async def ask(number):
        at_end_of_turn(work)
        done.append(number)

    def work():
        done.append("work")

    async def together():
        await asyncio.gather(*(ask(number) for number in range(3)))

    loop.run_until_complete(together())
    assert done == [0, 1, 2, "work"]


def test_what_is_added_by_work_is_of_the_next_turn(loop):
    done = []

    def again():
        done.append(1)
        if len(done) < 3:
            assert at_end_of_turn(again)

    async def wait():
        at_end_of_turn(again)
        for _ in range(5):
            await asyncio.sleep(0)

    loop.run_until_complete(wait())
    assert len(done) == 3


def test_a_loop_that_is_closed_leaves_nothing_undone(loop):
    done = []

    async def last():
        at_end_of_turn(lambda: done.append(1))
        loop.stop()

    task = loop.create_task(last())
    loop.run_forever()
    loop.close()
    gc.collect()
    assert done == [1]
    assert task.done()


def test_the_next_loop_of_a_thread_has_turns_of_its_own():
    done = []
    for new in LOOPS:

        async def ask(name=new.__module__):
            at_end_of_turn(lambda: done.append(name))
            await asyncio.sleep(0)

        loop = new()
        loop.run_until_complete(ask())
        loop.close()
    assert len(done) == 2


def test_loops_in_several_threads_do_not_meet():
    done = []

    def run():
        async def ask():
            me = threading.get_ident()
            assert at_end_of_turn(lambda: done.append(me == threading.get_ident()))
            await asyncio.sleep(0)

        for _ in range(50):
            asyncio.run(ask())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 200


def test_gathering_is_given_up_where_nothing_comes_together():
    gathering = TurnBatching()
    asked = 0
    while gathering.pays():
        gathering.ended(1)
        asked += 1
    assert asked == 8
    refused = 1
    while not gathering.pays():
        refused += 1
    assert refused == 256


def test_gathering_goes_on_where_something_comes_together_now_and_then():
    gathering = TurnBatching()
    for turn in range(1000):
        assert gathering.pays()
        gathering.ended(2 if turn % 5 == 0 else 1)
