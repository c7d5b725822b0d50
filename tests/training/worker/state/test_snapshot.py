"""A state that is saved after a resume, before its first step: nothing of the last one is lost."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from timonel.training.worker.state.checkpoint_format import FitState, Progress
from timonel.training.worker.state.data_position import Feed
from timonel.training.worker.state.process_variables import ProcessVariables
from timonel.training.worker.state.snapshot import Snapshot
from timonel.training.worker.state.variables import StrategyReplicas

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    "momentum": lambda flavour: flavour.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda flavour: flavour.optimizers.Adam(0.1),
    "scaled": lambda flavour: flavour.mixed_precision.LossScaleOptimizer(
        flavour.optimizers.Adam(0.1)
    ),
}
X = np.arange(8, dtype=np.float32)[:, None]


class Process:
    """What a process of a job holds."""

    def __init__(self, flavour: Any, optimizer: str) -> None:
        flavour.backend.clear_session()
        flavour.utils.set_random_seed(1)
        self.told: list[str] = []
        self.variables = ProcessVariables()
        with self.variables.watched():
            self.model = flavour.Sequential([flavour.Input((1,)), flavour.layers.Dense(1)])
            self.model.compile(OPTIMIZERS[optimizer](flavour), "mse")
        self._snapshot = Snapshot(
            self.model, [], StrategyReplicas(None), Feed(), self.variables, self.told.append
        )
        self.variables.begin(())

    def take(self, trained: int) -> FitState:
        return self._snapshot.take(Progress(), trained)

    def restore(self, state: FitState) -> None:
        self._snapshot.restore(state)

    def step(self) -> None:
        with self.variables.watched():
            self.model.fit(X, X, batch_size=8, epochs=1, verbose=0)


def content(state: FitState) -> list[Any]:
    others = [(each["key"], np.array(each["values"]).tolist()) for each in state.extra["others"]]
    return [[each.tolist() for each in state.variables], sorted(others)]


@pytest.mark.parametrize("flavour", [keras, tf_keras])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_of_the_optimizer(flavour: Any, optimizer: str) -> None:
    unbroken = Process(flavour, optimizer)
    unbroken.step()
    saved = unbroken.take(1)
    unbroken.step()

    resumed = Process(flavour, optimizer)
    resumed.restore(saved)
    again = resumed.take(1)
    assert content(again) == content(saved)

    resumed_again = Process(flavour, optimizer)
    resumed_again.restore(again)
    resumed_again.step()
    assert content(resumed_again.take(2))[0] == content(unbroken.take(2))[0]
    assert not resumed_again.told


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_of_variables_that_a_step_creates(flavour: Any) -> None:
    first = Process(flavour, "momentum")
    with first.variables.watched():
        created = tf.Variable(5, dtype=tf.int64, name="count")
    saved = first.take(1)
    del created

    second = Process(flavour, "momentum")
    second.restore(saved)
    again = second.take(1)
    assert not second.told  # its step may still create it

    third = Process(flavour, "momentum")
    third.restore(again)
    with third.variables.watched():
        assert tf.Variable(0, dtype=tf.int64, name="count").numpy() == 5

    fourth = Process(flavour, "momentum")
    fourth.restore(again)
    fourth.step()
    fourth.take(2)
    assert "count" in fourth.told[0]


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_an_optimizer_that_is_used_for_the_first_time_after_a_resume(flavour: Any) -> None:
    first = Process(flavour, "adam")
    first.model.optimizer.learning_rate = 0.25
    saved = first.take(3)

    second = Process(flavour, "adam")
    second.restore(saved)
    second.step()
    assert float(second.model.optimizer.learning_rate) == 0.25
    assert int(second.model.optimizer.iterations) == 1
