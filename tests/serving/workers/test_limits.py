"""Limits that several processes keep together."""

from __future__ import annotations

import os

import pytest

from timonel.serving.access import shared
from timonel.serving.access.limits import Rate
from timonel.serving.access.shared import SharedMemory, SharedSlots, SharedThrottle


@pytest.fixture
def memory():
    return SharedMemory.make()


def another(memory, worker):
    return SharedMemory(os.dup(memory.descriptor), worker)


def test_a_bucket_is_emptied_by_all_and_fills_up_for_all(memory):
    one = SharedThrottle(Rate(1.0, 2), memory, 0)
    two = SharedThrottle(Rate(1.0, 2), another(memory, 1), 0)
    assert [one.take("a", 5.0), two.take("a", 5.0), one.take("a", 5.0)] == [0.0, 0.0, 1.0]
    assert two.take("b", 5.0) == 0.0
    assert two.take("a", 6.0) == 0.0
    assert one.take("a", 6.5) == 0.5


def test_the_two_tables_are_apart(memory):
    clients, models = (SharedThrottle(Rate(1.0, 1), memory, table) for table in (0, 1))
    assert clients.take("a", 0.0) == 0.0
    assert models.take("a", 0.0) == 0.0
    assert models.take("a", 0.0) > 0.0


def test_no_rate_lets_everything_through(memory):
    throttle = SharedThrottle(None, memory, 0)
    assert {throttle.take("a", 0.0) for _ in range(100)} == {0.0}


def test_more_names_than_there_is_room_for_push_out_the_oldest(monkeypatch, memory):
    monkeypatch.setattr(shared, "_SETS", 16)
    throttle = SharedThrottle(Rate(1.0, 1), memory, 0)
    for number in range(2000):
        throttle.take(f"client {number}", 1.0 + number * 1e-6)
    # The last ones are still known, and the first have a full bucket again.
    assert throttle.take("client 1999", 1.06) > 0.0
    assert throttle.take("client 0", 1.06) == 0.0


def test_slots_are_counted_over_all_and_given_back_for_a_worker_that_died(memory):
    one, two = SharedSlots(3, memory), SharedSlots(3, another(memory, 1))
    assert [one.take(), two.take(), two.take(), one.take()] == [True, True, True, False]
    one.give()
    assert two.take()
    assert not two.take()
    memory.forget(1)
    assert [one.take(), one.take(), one.take(), one.take()] == [True, True, True, False]


def test_no_limit_counts_nothing(memory):
    slots = SharedSlots(None, memory)
    assert all(slots.take() for _ in range(10))
    slots.give()


def test_a_holder_that_dies_leaves_nothing_locked(memory):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with memory.locked(0):
            os.write(writing, b"x")
            os._exit(1)
    os.read(reading, 1)
    os.waitpid(child, 0)
    assert SharedSlots(1, memory).take()
    os.close(reading)
    os.close(writing)
