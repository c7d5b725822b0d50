"""Variables and tables of a process are found, matched and restored, whoever holds them."""

from __future__ import annotations

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

    saved = changed(script, lambda things: things[0][1].assign(5.0))
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
