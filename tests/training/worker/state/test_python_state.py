"""Python state of callbacks: what comes back, in which objects, and what is named as lost."""

from __future__ import annotations

import collections
import datetime as dt
import pickle
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from timonel.training.worker.state import checkpoint_format, python_state


class Box:
    def __init__(self) -> None:
        self.count = 0
        self.items: list[Any] = [self]


@dataclass
class Record:
    value: int = 1


class Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1


class Pair(NamedTuple):
    a: int
    b: str


class Holder:
    """What a script makes anew in each process."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.own = type("Made", (), {})()
        self.own.count = 0
        self.box = Box()
        self.boxes: list[Box] = []
        self.old_generator = np.random.RandomState(5)
        self.generator = np.random.default_rng(3)
        self.python = random.Random(1)
        self.counts: collections.Counter[str] = collections.Counter()
        self.lists: Any = collections.defaultdict(list)
        self.last: Any = collections.deque(maxlen=3)
        self.record = Record()
        self.slots = Slots()
        self.pair = Pair(1, "a")
        self.begun = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        self.array = np.zeros(3)
        self.objects = np.array([None, 1], object)
        self.path = Path("a")


def advance(holder: Holder) -> None:
    holder.seen |= {3, 4}
    holder.own.count = 5
    holder.box.count = 7
    holder.boxes.append(Box())
    holder.boxes[0].count = 8
    holder.old_generator.shuffle(np.arange(9))
    holder.generator.random(5)
    holder.python.random()
    holder.counts["a"] += 2
    holder.lists["x"].append(1)
    holder.last.extend([1, 2, 3, 4])
    holder.record.value = 9
    holder.slots.value = 4
    holder.pair = Pair(2, "b")
    holder.begun += dt.timedelta(days=1)
    holder.array += 2
    holder.objects[0] = "q"
    holder.path = holder.path / "b"


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """What is read from a checkpoint."""
    arrays: list[Any] = []
    found: dict[str, Any] = checkpoint_format.decode(
        checkpoint_format.encode(state, arrays), arrays
    )
    return found


def test_all_that_can_be_pickled_comes_back_in_the_objects_of_the_script() -> None:
    before, after = Holder(), Holder()
    advance(before)
    state, lost = python_state.capture(before)
    assert lost == []
    shared = after.seen, after.box, after.own, after.array, after.last, after.lists
    assert python_state.restore(after, stored(state), lambda _: False) == []
    assert all(
        ours is theirs
        for ours, theirs in zip(
            shared,
            (after.seen, after.box, after.own, after.array, after.last, after.lists),
            strict=True,
        )
    )
    assert (after.seen, after.own.count, after.box.count) == ({3, 4}, 5, 7)
    assert after.box.items[0] is after.box
    assert (type(after.boxes[0]), after.boxes[0].count) == (Box, 8)
    assert after.old_generator.randint(1 << 30) == before.old_generator.randint(1 << 30)
    assert after.generator.random() == before.generator.random()
    assert after.python.random() == before.python.random()
    assert (type(after.counts), after.counts["a"], after.counts["b"]) == (collections.Counter, 2, 0)
    after.lists["new"].append(2)
    assert after.lists == {"x": [1], "new": [2]}
    assert after.last == collections.deque([2, 3, 4])
    assert after.last.maxlen == 3
    assert (after.record, after.slots.value, after.pair) == (Record(9), 4, Pair(2, "b"))
    assert (after.begun, after.path) == (before.begun, before.path)
    assert after.array.tolist() == [2, 2, 2]
    assert after.objects.tolist() == ["q", 1]


def test_what_cannot_be_saved_is_named() -> None:
    holder = Holder()
    holder.lock = threading.Lock()  # type: ignore[attr-defined]
    holder.numbers = (n for n in range(3))  # type: ignore[attr-defined]
    holder.within = [len, {threading.Lock()}]  # type: ignore[attr-defined]
    holder.function = lambda: 1  # type: ignore[attr-defined]
    assert python_state.capture(holder)[1] == ["lock", "numbers", "within"]


def test_an_object_that_defines_its_state_is_asked_for_it() -> None:
    class Own:
        def __init__(self) -> None:
            self.value: Any = set()

        def get_state(self) -> Any:
            return self.value

        def set_state(self, value: Any) -> None:
            self.value = value

    before, after = Own(), Own()
    for value in ({1, 2}, {"a": (1, 2)}):
        before.value = value
        state, lost = python_state.capture(before)
        assert lost == python_state.restore(after, stored(state), lambda _: False) == []
        assert after.value == value


@pytest.mark.parametrize(
    "made", [(eval, ("1",)), (getattr, (Box, "__init__")), (pickle.loads, (b"N.",)), (type, ("A",))]
)
def test_a_pickle_calls_no_function_of_its_choice(made: Any) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return made

    state = {"plain": {}, "pickled": {"seen": np.frombuffer(pickle.dumps(Hostile()), np.uint8)}}
    holder = Holder()
    assert python_state.restore(holder, state, lambda _: False) == ["seen"]
    assert holder.seen == set()
