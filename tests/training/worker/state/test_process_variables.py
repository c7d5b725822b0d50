"""Variables and tables of a process are found, matched and restored, whoever holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from timonel.training.worker.state.process_variables import ProcessVariables
from timonel.training.worker.state.variables import StrategyReplicas

Script = Callable[[], Any]
_NONE: frozenset[int] = frozenset()


def changed(script: Script, change: Callable[[Any], None]) -> list[Any]:
    """What is saved of a process that runs the script, and then changes something."""
    variables = ProcessVariables()
    with variables.watched():
        things = script()
        variables.begin(_NONE)
        change(things)
        return variables.capture(_NONE)


def resumed(script: Script, saved: list[Any]) -> tuple[Any, ProcessVariables]:
    variables = ProcessVariables()
    with variables.watched():
        things = script()
        variables.restore(saved, _NONE)
        return things, variables


def test_only_what_a_call_changes_is_saved_and_matched_by_order() -> None:
    def script() -> Any:
        tf.Variable(3.0)  # dropped at once, but counted
        return [tf.Variable(0.0) for _ in range(3)], tf.Variable([1, 2], name="named")

    variables = ProcessVariables()
    with variables.watched():
        things = script()
        variables.begin(_NONE)
        first = variables.capture(_NONE)  # all: a new process may draw other initial values
        assert [each["number"] for each in first] == [1, 2, 3, 0]
        variables.begin(_NONE)
        things[0][1].assign(5.0)
        saved = variables.capture(_NONE)
    assert [(each["key"][0], each["number"]) for each in saved] == [("Variable:0", 2)]
    (numbers, named), variables = resumed(script, saved)
    assert [float(each) for each in numbers] == [0.0, 5.0, 0.0]
    assert named.numpy().tolist() == [1, 2]
    assert variables.missing == []


@pytest.mark.parametrize("traced", [False, True])
def test_a_variable_gets_its_state_when_it_appears(traced: bool) -> None:
    class Lazy:
        def __init__(self) -> None:
            self.variable: Any = None

        def step(self) -> Any:
            if self.variable is None:
                self.variable = tf.Variable(1.0, name="lazy")
            return self.variable.assign_add(1.0)

    def script() -> Any:
        lazy = Lazy()
        return lazy, tf.function(lazy.step) if traced else lazy.step

    def change(things: Any) -> None:
        things[1]()
        things[1]()

    saved = changed(script, change)
    (lazy, step), variables = resumed(script, saved)
    assert len(variables.missing) == 1
    assert "lazy:0 (test_process_variables.py:" in variables.missing[0]
    with variables.watched():
        step()
    assert float(lazy.variable) == 4.0
    assert variables.missing == []


def test_generators_and_tables() -> None:
    def script() -> Any:
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        table.insert(["a", "gone"], tf.constant([1, 2], tf.int64))
        return tf.random.Generator.from_seed(1), table

    drawn: list[float] = []

    def change(things: Any) -> None:
        generator, table = things
        generator.normal([])
        table.remove(tf.constant(["gone"]))
        table.insert(["b\0"], tf.constant([7], tf.int64))

    def draw(things: Any) -> None:
        change(things)
        drawn.append(float(things[0].normal([])))

    changed(script, draw)
    (generator, table), _ = resumed(script, changed(script, change))
    assert float(generator.normal([])) == drawn[0]
    found = table.lookup(tf.constant(["a", "gone", "b\0"])).numpy().tolist()
    assert found == [1, -1, 7]


def test_replicas_get_their_own_values_back() -> None:
    devices = [f"CPU:{number}" for number in range(len(tf.config.list_logical_devices("CPU")))]
    strategy = tf.distribute.MirroredStrategy(devices)

    def run(saved: list[Any] | None) -> tuple[list[Any], list[Any]]:
        variables = ProcessVariables(StrategyReplicas(strategy))
        with strategy.scope(), variables.watched():
            weight = tf.Variable(1.0)
            total = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            variables.begin(_NONE)
            if saved is not None:
                variables.restore(saved, _NONE)
            else:
                weight.assign(4.0)
                for number, part in enumerate(strategy.experimental_local_results(total)):
                    part.assign(number + 1.0)
            values = [
                [float(part) for part in strategy.experimental_local_results(each)]
                for each in (weight, total)
            ]
            return variables.capture(_NONE), values

    saved, before = run(None)
    assert run(saved)[1] == before


def test_garbage_is_not_saved() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self
            self.variable = tf.Variable(np.zeros(4), name="cyclic")

    variables = ProcessVariables()
    with variables.watched():
        variables.begin(_NONE)
        Cycle()
        kept = tf.Variable(2.0)
        found = variables.capture(_NONE)
    assert [each["key"][0] for each in found] == [kept.name]


def test_initial_values_that_a_process_draws_are_saved() -> None:
    def script() -> Any:
        return tf.Variable(np.random.default_rng().normal(size=4))

    before: list[Any] = []
    saved = changed(script, before.append)
    assert np.array_equal(resumed(script, saved)[0], before[0])


def test_dense_tables_have_no_unused_keys() -> None:
    def script() -> Any:
        kinds: list[tuple[Any, Any, Any]] = [
            (tf.int64, -1, -2),
            (tf.string, "", "gone"),
            (tf.int64, tf.constant([-1, 0], tf.int64), tf.constant([-1, 1], tf.int64)),
        ]
        return [
            tf.lookup.experimental.DenseHashTable(
                kind, tf.float32, 0.0, empty_key=empty, deleted_key=deleted
            )
            for kind, empty, deleted in kinds
        ]

    def change(tables: Any) -> None:
        tables[0].insert(tf.constant([5, 6], tf.int64), [1.0, 2.0])
        tables[0].remove(tf.constant([6], tf.int64))
        tables[1].insert(tf.constant(["a"]), [3.0])
        tables[2].insert(tf.constant([[1, 2]], tf.int64), [4.0])

    saved = changed(script, change)
    tables, _ = resumed(script, saved)
    assert [int(table.size()) for table in tables] == [1, 1, 1]
    assert tables[0].lookup(tf.constant([5, 6], tf.int64)).numpy().tolist() == [1, 0]
    assert tables[1].lookup(tf.constant(["a"])).numpy().tolist() == [3]
    assert tables[2].lookup(tf.constant([[1, 2]], tf.int64)).numpy().tolist() == [4]


def test_variables_of_unknown_shape_and_of_threads() -> None:
    def script() -> Any:
        made: list[Any] = [
            tf.Variable(tf.zeros([0, 2]), shape=[None, 2]),
            tf.Variable(0.0, shape=tf.TensorShape(None)),
        ]
        thread = threading.Thread(target=lambda: made.append(tf.Variable(1.0, name="thread")))
        thread.start()
        thread.join()
        return made

    def change(made: Any) -> None:
        made[0].assign([[1.0, 2.0]])
        made[1].assign([3.0])
        made[2].assign(4.0)

    found, _ = resumed(script, changed(script, change))
    assert [each.numpy().tolist() for each in found] == [[[1, 2]], [3], 4]


def test_variables_that_only_the_step_of_their_creation_tells_apart_are_named() -> None:
    late: list[Any] = []

    def change(variables: ProcessVariables) -> None:
        late.append(tf.Variable(1.0))  # in the first step, as in that of a new process
        for _ in range(2):
            variables.step_ends()
            late.append(tf.Variable(2.0))
            late.append(tf.Variable(3.0, name=f"at_once_{len(late)}"))

    variables = ProcessVariables()
    with variables.watched():
        variables.begin(_NONE)
        change(variables)
        saved = variables.capture(_NONE)
    assert sorted(each["key"][0] for each in saved) == ["Variable:0", "at_once_2:0", "at_once_4:0"]
    assert len(variables.lost) == 2
    assert all(each.startswith("Variable:0 (test_process") for each in variables.lost)


def test_large_values_that_a_call_does_not_change_are_compared_only() -> None:
    def script(value: float = 1.0) -> Any:
        return [tf.Variable(tf.fill([1 << 22], value), name=name) for name in ("kept", "changed")]

    saved = changed(script, lambda things: things[1].assign_add(tf.ones([1 << 22])))
    assert [each["values"] is None for each in saved] == [True, False]
    things, variables = resumed(script, saved)
    assert [float(each[0]) for each in things] == [1.0, 2.0]
    assert variables.missing == []
    _, variables = resumed(lambda: script(3.0), saved)
    assert [name.partition(" ")[0] for name in variables.missing] == ["kept:0"]
