"""Two links in one process: memory, large messages, and a side that does not listen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waiting import until
from timonel.serving.isolation.connection import MAX_QUEUED, Connection
from timonel.serving.isolation.messages import ProtocolError
from timonel.serving.isolation.packets import INLINE_BYTES, FrameKind, read_frames
from timonel.serving.isolation.shared_memory import Arena, SharedSegment, new_segment
from timonel.serving.status import Code, StatusError

MIB = 1 << 20


class Pair:
    """A link and its echo: what is asked comes back from the other side's memory."""

    def __init__(self, limit_bytes=64 * MIB):
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.front = Connection(left, limit_bytes=limit_bytes)
        self.back = Connection(right, limit_bytes=limit_bytes)
        self.answers = {}
        self.threads = [
            threading.Thread(target=self.front.serve, args=(self._keep,)),
            threading.Thread(target=self.back.serve, args=(self._echo,)),
        ]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.answers.clear()
        self.front.shut()
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        self.front.close()
        self.back.close()
        self.back.close()

    def _keep(self, message):
        self.answers[message.number] = message

    def _echo(self, message):
        self.back.post(FrameKind.ANSWER, message.number, message.fields, message.arrays)

    def ask(self, number, **arrays):
        self.front.post(FrameKind.REQUEST, number, ["f"], arrays)
        until(lambda: number in self.answers)
        return self.answers.pop(number).arrays

    def taken(self):
        return tuple(len(link.arena._uses) for link in (self.front, self.back))


@pytest.mark.parametrize("count", [0, 1, INLINE_BYTES // 8, MIB, 5 * MIB // 2])
def test_arrays_of_any_size_come_back_and_memory_is_free_again(count):
    with Pair() as pair:
        x = np.arange(count, dtype=np.float64)
        found = pair.ask(1, x=x)["x"]
        np.testing.assert_array_equal(found, x)
        assert found.flags.aligned
        part = found[:1].reshape(1, -1) if count else found
        del found
        if count > INLINE_BYTES // 8:
            assert pair.taken()[1] == 1, "a view keeps the memory"
        del part
        until(lambda: pair.taken() == (0, 0))


def test_an_allocated_array_is_sent_where_it_lies_and_stays_until_both_are_done():
    with Pair() as pair:
        x = pair.front.allocate((1000, 1000), "DT_FLOAT", 1.0)
        x[:] = 3
        assert pair.taken() == (1, 0)
        found = pair.ask(1, x=x.reshape(-1), again=x)
        assert found["x"].shape == (MIB * 0 + 1_000_000,)
        assert found["x"].mean() == found["again"].mean() == 3
        # A part of it that begins elsewhere, or lies otherwise, is copied.
        assert pair.ask(2, x=x[1:])["x"].shape == (999, 1000)
        assert pair.ask(3, x=x.T)["x"].shape == (1000, 1000)
        until(lambda: pair.taken() == (1, 1))
        del found, x
        until(lambda: pair.taken() == (0, 0))


def test_a_foreign_array_in_shared_memory_is_copied():
    with Pair() as pair, Pair() as other:
        x = other.front.allocate((5000,), "DT_DOUBLE", 1.0)
        x[:] = 1
        assert pair.ask(1, x=x)["x"].sum() == 5000
        del x
        until(lambda: other.taken() == (0, 0))


def test_hundreds_of_megabytes_are_sent_and_given_back():
    with Pair(limit_bytes=400 * MIB) as pair:
        x = np.zeros(200 * MIB, np.uint8)
        x[-1] = 7
        assert pair.ask(1, x=x)["x"][-1] == 7
        until(lambda: pair.taken() == (0, 0))
        until(lambda: pair.front.arena.bytes_mapped == pair.back.arena.bytes_mapped == 0)
        assert not any(pair.back._receiver.segments)


def test_too_much_is_refused_and_a_full_arena_waits():
    with Pair(limit_bytes=2 * MIB) as pair:
        with pytest.raises(StatusError, match="exceed the limit of 2097152 bytes") as caught:
            pair.front.allocate((2 * MIB + 1,), "DT_INT8", 9.0)
        assert caught.value.code is Code.RESOURCE_EXHAUSTED
        kept = pair.front.allocate((2 * MIB,), "DT_INT8", 0.0)
        with pytest.raises(StatusError, match=r"became free in 0\.01 s"):
            pair.front.allocate((1,), "DT_INT8", 0.01)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pair.front.allocate, (2 * MIB,), "DT_INT8", 20.0)
            time.sleep(0.05)
            assert not waiting.done()
            del kept
            assert waiting.result(20).nbytes == 2 * MIB
            del waiting


def test_many_threads_send_at_once():
    with Pair(limit_bytes=4 * MIB) as pair:

        def ask(number):
            size = (number * 7919) % (4 * INLINE_BYTES)
            return pair.ask(number, x=np.full(size, number % 251, np.uint8))["x"]

        with ThreadPoolExecutor(8) as pool:
            for number, found in enumerate(pool.map(ask, range(600))):
                assert (found == number % 251).all()
                del found
        gc.collect()
        until(lambda: pair.taken() == (0, 0))


def until_blocked():
    """Return how many messages a socket takes before it blocks."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    front = Connection(left, limit_bytes=MIB)
    count = 0
    while not front._sender.is_blocked:
        front.post(FrameKind.REQUEST, count, [], {"x": np.zeros(INLINE_BYTES // 2, np.uint8)})
        count += 1
    front.close()
    right.close()
    return count


@pytest.mark.parametrize("waiting", [1, 100], ids=["one waits", "many wait"])
def test_a_side_that_does_not_listen_holds_nobody_up(waiting):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    front, back = Connection(left, limit_bytes=MIB), Connection(right, limit_bytes=MIB)
    x = np.zeros(INLINE_BYTES // 2, np.uint8)
    count = until_blocked() + waiting - 1
    for number in range(count):
        front.post(FrameKind.REQUEST, number, [], {"x": x})
    heard = []
    threads = [
        threading.Thread(target=front.serve, args=(heard.append,)),
        threading.Thread(target=back.serve, args=(heard.append,)),
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(heard) == count)
    assert [message.number for message in heard] == list(range(count))
    front.shut()
    for thread in threads:
        thread.join()
    front.post(FrameKind.REQUEST, 1)
    with pytest.raises(StatusError, match="has ended"):
        front.allocate((1,), "DT_INT8", 1.0)
    front.close()
    back.close()
    front.wake()


def packets_of(connection):
    """Return what has come, and is not read by a link."""
    connection.setblocking(False)
    packets = []
    with contextlib.suppress(BlockingIOError):
        while True:
            packets.append(connection.recv(1 << 20))
    return [[frame.number for frame in read_frames(packet)] for packet in packets]


@pytest.fixture
def half():
    """A link that nobody serves, and what comes out of it."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = Connection(left, limit_bytes=MIB)
    yield link, right
    link.close()
    right.close()


def post_some(link, count, size=3136):
    for number in range(count):
        link.post(FrameKind.REQUEST, number, [], {"x": np.zeros(size, np.uint8)}, turn=True)


def test_what_is_asked_in_a_turn_goes_in_one_packet(half):
    link, right = half

    async def turns():
        post_some(link, 16)
        assert packets_of(right) == [], "more may come"
        await asyncio.sleep(0)
        assert packets_of(right) == [list(range(16))]
        post_some(link, 2)
        link.post(FrameKind.CANCEL, 7)
        assert packets_of(right) == [[0, 1, 7]], "what is urgent takes along what waits"

    asyncio.run(turns())
    post_some(link, 2)
    assert packets_of(right) == [[0], [1]], "without a loop there is no turn"


def test_a_turn_in_which_much_is_asked_is_not_waited_for(half):
    link, right = half

    async def turn():
        post_some(link, MAX_QUEUED + 3, size=1)
        assert packets_of(right) == [list(range(MAX_QUEUED))]

    asyncio.run(turn())
    assert packets_of(right) == [[MAX_QUEUED, MAX_QUEUED + 1, MAX_QUEUED + 2]]


def test_a_loop_that_is_closed_leaves_nothing_unsent(half):
    link, right = half
    loop = asyncio.new_event_loop()

    async def last():
        post_some(link, 3)
        loop.stop()

    task = loop.create_task(last())
    loop.run_forever()
    assert task.done()
    assert packets_of(right) == []
    loop.close()
    assert packets_of(right) == [[0, 1, 2]]


@pytest.mark.slow
def test_descriptors_are_given_back():
    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(5):
        with Pair() as pair:
            found = pair.ask(1, x=np.ones(MIB))["x"]
        assert found.sum() == MIB, "what was received outlives the connection"
        del found, pair
        gc.collect()
    assert count() == before


@pytest.mark.parametrize("packet", [b"\0" * 31, b"\xff" * 32, b"\4" + b"\0" * 31])
def test_nonsense_ends_the_receiver(packet):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = Connection(left, limit_bytes=MIB)
    right.send(packet)
    with pytest.raises(ProtocolError):
        link.serve(lambda _: None)
    link.close()
    right.close()


def test_memory_that_could_be_cut_is_refused():
    descriptor = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    with pytest.raises(ValueError, match="sealed"):
        SharedSegment(descriptor, 4096)
    os.close(descriptor)
    descriptor, _ = new_segment(4096)
    with pytest.raises(OSError, match="ermitted"):
        os.ftruncate(descriptor, 0)
    with pytest.raises(ValueError, match="length"):
        SharedSegment(descriptor, 8192)
    os.close(descriptor)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300 << 10)), max_size=40))
def test_an_arena_loses_nothing(steps):
    announced, retired = [], []

    def announce(number, descriptor, size):
        os.close(descriptor)
        announced.append(number)

    arena = Arena(announce, retired.append, limit_bytes=MIB, segment_bytes=128 << 10)
    kept = []
    for give, length in steps:
        if give and kept:
            kept.pop(0)
            continue
        try:
            hold = arena.allocate(length, 0.0)
        except StatusError:
            continue
        hold.array()[:] = len(kept)
        kept.append(hold)
        assert arena.bytes_mapped <= MIB
        assert len(arena._uses) == len(kept)
    places = sorted((hold.number, hold.offset, len(hold.array())) for hold in kept)
    assert all(a[0] != b[0] or a[1] + a[2] <= b[1] for a, b in itertools.pairwise(places))
    kept.clear()
    del places
    if announced:
        hold = None
    assert len(arena._uses) == 0
    assert arena.allocate(MIB, 0.0) is not None
    assert set(retired) <= set(announced)
