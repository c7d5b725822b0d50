"""What is counted of what workers tell, and what becomes Keras' logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from timonel.training.worker.ps.states import StepState
from timonel.training.worker.ps.tracing import TracedStep
from timonel.training.worker.ps.worker_messages import StepResults


def _step(sent: tuple[StepState, ...] = (), logs: tuple[str, ...] = ()) -> TracedStep:
    return TracedStep(
        function=None,
        sent=sent,
        log_names=logs,
        values=dict.fromkeys(logs, ()),
        entries={},
        optimizer=None,
        variables=(),
    )


class _Model:
    def __init__(self, *metrics: Any) -> None:
        self.metrics = metrics

    def get_metrics_result(self) -> dict[str, Any]:
        return {metric.name: metric.result() for metric in self.metrics}


def test_metrics_are_summed_and_averages_weighed_by_rows() -> None:
    total, average = tf.Variable(1.0), tf.Variable([0.0, 2.0])
    count, flag = tf.Variable(3), tf.Variable(False)
    states = (
        StepState(total, is_metric=True),
        StepState(average),
        StepState(count),
        StepState(flag),
    )
    telling = StepResults(_Model(), _step(states))
    telling.add([np.array([2.0, 4, 0, 1, 1, 0.0]), np.array([3.0, 8, 4, 1, 1, 0.0])], [0.75, 0.25])
    assert float(total) == 6.0
    assert average.numpy().tolist() == [5.0, 3.0]
    assert int(count) == 4  # each part has counted the batch
    assert bool(flag)


def test_generators_go_on_where_one_process_would_be_and_never_repeat() -> None:
    seed = tf.Variable([7, 3], dtype=tf.uint32)
    counter = tf.Variable([5, 0, 9], dtype=tf.int64)
    states = (StepState(seed, is_seed=True), StepState(counter, is_seed=True))
    telling = StepResults(_Model(), _step(states))
    telling.add([np.array([0.0, 2, 24, 0, 0, 0])], [1.0])
    telling.rest(1)
    assert seed.numpy().tolist() == [7, 5]
    assert counter.numpy().tolist() == [29, 0, 9]
    telling.add([np.array([0.0, 2, 24, 0, 0, 0])], [1.0])
    telling.rest(3)
    begun = {tuple(seed.numpy())} | {
        tuple(seed.numpy() + np.array(StepState(seed).elsewhere(batch, part)))
        for batch in range(3)
        for part in range(2)
    }
    assert len(begun) == 6  # the first of them is the state as it is
    assert seed.numpy().tolist() == [7, 5 + 3 * 4096]
    assert counter.numpy().tolist() == [29, 0, 12]


def test_logs_are_metrics_that_were_counted_else_the_steps_own_values() -> None:
    counted, left = keras.metrics.Mean(name="counted"), keras.metrics.Mean(name="loss")
    states = tuple(StepState(v.value, is_metric=True) for v in counted.variables)
    telling = StepResults(_Model(counted, left), _step(states, ("loss", "counted")))
    vectors = [np.array([6.0, 3, 1.0, 2.0, 0]), np.array([2.0, 1, 5.0, 2.0, 0])]
    shares = [0.75, 0.25]
    telling.add(vectors, shares)
    assert telling.logs(vectors, shares) == {"loss": 2.0, "counted": 2.0}


def test_a_metric_under_another_name_is_its_running_result() -> None:
    counted = keras.metrics.Mean(name="counted")
    states = tuple(StepState(v.value, is_metric=True) for v in counted.variables)
    step = replace(_step(states, ("mine",)), metrics={"mine": (counted, None)})
    telling = StepResults(_Model(counted), step)
    for total in (6.0, 2.0):
        vectors = [np.array([total, 2, total / 2, 0])]
        telling.add(vectors, [1.0])
    assert telling.logs(vectors, [1.0]) == {"mine": 2.0}


def test_logs_may_be_vectors() -> None:
    step = replace(_step(), log_names=("a", "b"), values={"a": (2,), "b": ()})
    vectors = [np.array([1.0, 2, 3, 0]), np.array([3.0, 4, 5, 0])]
    found = StepResults(_Model(), step).logs(vectors, [0.5, 0.5])
    assert (found["a"].tolist(), found["b"]) == ([2.0, 3.0], 4.0)
