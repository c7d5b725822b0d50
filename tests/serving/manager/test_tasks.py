from __future__ import annotations

import queue
import threading
from contextlib import contextmanager

import pytest

from timonel.serving.manager.tasks import ModelTask, Tasks

_YIELD_S = 5.0
_SLOW_S = 30.0


class Rig:
    """Loads whose callbacks are made by `handle`, and jobs that end when told to."""

    def __init__(self, limit=1, timeout_s=None):
        self.posted = queue.SimpleQueue()
        self.slow = []
        self.loads = Tasks(
            limit,
            _YIELD_S,
            self.posted.put,
            slow_s=_SLOW_S,
            timeout_s=timeout_s,
            on_slow=self.slow.append,
        )
        self.ends = {}
        self.begun = queue.SimpleQueue()
        self.log = []

    def submit(self, name, error=None):
        end = self.ends[name] = threading.Event()

        def work():
            self.begun.put(name)
            end.wait()
            if error is not None:
                raise error
            return name

        def ended(done):
            self.log.append((name, "cancelled" if done.cancelled() else done.exception() or "ok"))

        def expired(tasks):
            self.log.append((name, f"expired: {tasks}"))

        self.loads.submit(ModelTask(name, work, ended, expired))

    def end(self, name):
        self.ends[name].set()
        self.posted.get(timeout=10)()


@contextmanager
def rig(**options):
    made = Rig(**options)
    try:
        yield made
    finally:
        for end in made.ends.values():
            end.set()


def test_a_slow_load_frees_its_place_and_others_load_beside_it():
    with rig() as r:
        r.submit("slow")
        r.submit("next")
        r.loads.advance(0.0)
        assert r.begun.get(timeout=10) == "slow"
        assert r.loads.are_busy()
        assert r.loads.next_change(0.0) == _YIELD_S
        r.loads.advance(_YIELD_S)
        assert r.begun.get(timeout=10) == "next"
        r.end("next")
        r.loads.advance(_YIELD_S + 1)
        assert r.loads.are_busy(), "the start waits for a load that is not slow yet"
        assert (r.loads.next_change(_YIELD_S + 1), r.slow) == (_SLOW_S, [])
        r.loads.advance(_SLOW_S)
        assert r.slow == ["slow"]
        r.loads.advance(_SLOW_S + 1)
        assert not r.loads.are_busy()
        assert r.log == [("next", "ok")]


def test_a_load_beyond_its_limit_expires_once_and_may_still_end():
    with rig(timeout_s=5.0) as r:
        r.submit("hung")
        r.loads.advance(1.0)
        assert r.loads.next_change(1.0) == 6.0
        r.loads.advance(5.9)
        assert r.log == []
        r.loads.advance(6.0)
        r.loads.advance(7.0)
        assert r.log == [("hung", "expired: 1")]
        assert r.loads.next_change(7.0) == float("inf")
        r.end("hung")
        assert r.log[1:] == [("hung", "ok")]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1)])
def test_an_error_of_a_load_arrives(error):
    with rig() as r:
        r.submit("bad", error)
        r.loads.advance(0.0)
        r.end("bad")
        assert r.log == [("bad", error)]


def test_waiting_loads_are_cancelled_and_running_ones_are_left():
    with rig() as r:
        r.submit("runs")
        r.submit("waits")
        r.loads.advance(0.0)
        r.loads.cancel()
        r.loads.advance(0.0)
        assert r.log == [("waits", "cancelled")]
