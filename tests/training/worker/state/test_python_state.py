"""Python state of callbacks: what comes back, in which objects, and what is named as lost."""

from __future__ import annotations

import collections
import datetime as dt
import functools
import pickle
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

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
    assert python_state.restore(after, stored(state), lambda *_: False) == []
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
        assert lost == python_state.restore(after, stored(state), lambda *_: False) == []
        assert after.value == value


@pytest.mark.parametrize(
    "made", [(eval, ("1",)), (getattr, (Box, "__init__")), (pickle.loads, (b"N.",)), (type, ("A",))]
)
def test_a_pickle_calls_no_function_of_its_choice(made: Any) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return made

    pickled = np.frombuffer(pickle.dumps({"seen": Hostile()}) + pickle.dumps([]), np.uint8)
    state = {"names": ["seen"], "pickled": pickled, "arrays": []}
    holder = Holder()
    assert python_state.restore(holder, state, lambda *_: False) == ["seen"]
    assert holder.seen == set()


class Aliases:
    """Arrays of the script that several attributes, or views, refer to."""

    def __init__(self) -> None:
        self.data = np.arange(6.0)
        self.now: Any = self.data
        self.shown: Any = self.data[:2]
        self.counts = self.same_counts = np.zeros(2)
        self.each: Any = dict.fromkeys("ab", self.counts)
        self.list: list[Any] = []
        self.last = self.list
        self.pair: Any = (Box(), frozenset({Pair(1, "a")}))


def resumed(before: Any, after: Any, change: Any) -> list[str]:
    """Restore what was changed in an object into another; return what was not saved."""
    origins = python_state.Origins(before)
    change(before)
    state, lost = python_state.capture(before, origins=origins)
    assert python_state.restore(after, stored(state), lambda *_: False) == []
    return lost


def test_what_was_assigned_overwrites_nothing_that_the_script_holds_elsewhere() -> None:
    def change(thing: Aliases) -> None:
        thing.now = thing.now + 1
        thing.shown = thing.shown + 100
        thing.counts += 1
        thing.each["a"] = thing.each["new"] = np.full(2, 5.0)
        thing.last = [1]
        thing.pair[0].count = 3

    after = Aliases()
    data, counts, box = after.data, after.counts, after.pair[0]
    assert resumed(Aliases(), after, change) == []
    assert data is after.data
    assert data.tolist() == list(range(6))
    assert after.now.tolist() == list(range(1, 7))
    assert after.shown.tolist() == [100, 101]
    assert after.counts is after.same_counts is after.each["b"] is counts
    assert counts.tolist() == [1, 1]
    assert after.each["a"] is after.each["new"]
    assert after.each["a"].tolist() == [5, 5]
    assert (after.list, after.last) == ([], [1])
    assert after.pair[0] is box
    assert (box.count, after.pair[1]) == (3, {Pair(1, "a")})


def test_arrays_of_all_types() -> None:
    values: list[Any] = [
        np.array(["a", "bcd"]),
        np.array([b"a"]),
        np.array(["2020-01-01"], "datetime64[s]"),
        np.array([(1, "a")], [("n", np.int64), ("text", "U3")]),
        np.array([None, {"a": 1}], object),
        np.zeros((0, 2)),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6)[::2],
    ]
    after = Holder()
    assert resumed(Holder(), after, lambda thing: setattr(thing, "array", values)) == []
    found: Any = after.array
    assert [each.dtype for each in found] == [each.dtype for each in values]
    assert [each.tolist() for each in found] == [each.tolist() for each in values]
    found[0][0] = "b"  # may be changed


class Count:
    n = 0

    def __call__(self) -> None:
        self.n += 1

    up = __call__


def scripts_callback(flavour: Any) -> Any:
    class Rate(flavour.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        n = 0

        def __call__(self, step: Any) -> float:
            return 0.1

    class Data(flavour.utils.Sequence):  # type: ignore[misc]
        n = 0

    class Own(flavour.callbacks.Callback):  # type: ignore[misc]
        log: ClassVar[list[int]] = []
        total = 0
        __slots__ = ("slot",)

        def __init__(self) -> None:
            super().__init__()
            self.slot = 0
            self.plateau = flavour.callbacks.ReduceLROnPlateau("loss")
            self.held = [Rate(), Data(), flavour.losses.MeanSquaredError(), Count()]
            self.method = Count().up
            self.partial = functools.partial(Count(), 1)

    return Own()


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_objects_of_keras_functions_and_classes_keep_their_place(flavour: Any) -> None:
    def change(thing: Any) -> None:
        thing.slot = 4
        thing.log.append(1)
        type(thing).total = 2
        thing.plateau.wait = 5
        for each in (*thing.held, thing.method.__self__, thing.partial.func):
            each.n = 3
        thing.held[1].lock = threading.Lock()
        thing.nets = [flavour.Sequential([])]
        thing.function = lambda: 1  # these four have no state, or in variables
        thing.variable, thing.mean = tf.Variable(1.0), flavour.metrics.Mean()
        thing.clone = flavour.Sequential([flavour.layers.Dense(1)])
        thing.rate = type(thing.held[0])()

    before, after = scripts_callback(flavour), scripts_callback(flavour)
    held = [after.plateau, *after.held]
    assert resumed(before, after, change) == ["held.lock", "nets", "rate"]
    assert (after.slot, after.log, type(after).total) == (4, [1], 2)
    assert [after.plateau, *after.held] == held
    assert after.plateau.wait == 5
    assert [each.n for each in after.held] == [3] * 4
    assert after.method.__self__.n == after.partial.func.n == 3


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_of_a_model_what_the_script_sets(flavour: Any) -> None:
    def made() -> Any:
        model = flavour.Sequential([flavour.Input((1,)), flavour.layers.Dense(1)])
        model.compile(flavour.optimizers.Adam(), "mse")
        model.level, model.losses_seen, model.parts = 1, [], {"a": model.layers[0], "n": 1}
        model.layers[0].calls = 0
        return model

    def change(model: Any) -> None:
        model.fit(np.zeros((2, 1)), np.zeros((2, 1)), verbose=0)
        model.level = 3
        model.losses_seen.append(0.5)
        model.parts["n"] = 2
        model.layers[0].calls = 7
        model.iterator = (n for n in [1])

    before, after = made(), made()
    kernel = np.array(after.get_weights()[0])
    assert resumed(before, after, change) == ["iterator"]
    assert (after.level, list(after.losses_seen), after.parts["n"]) == (3, [0.5], 2)
    assert after.layers[0].calls == 7
    assert np.array_equal(after.get_weights()[0], kernel)
    assert python_state.capture(made())[1] == []
