"""Copies of large variables, in memory that is used again."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from timonel.training.worker.state.variables import Buffers, StrategyReplicas

SIZE = 300_000


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    variable = tf.Variable(np.arange(SIZE, dtype=np.float32))
    buffers = Buffers()
    first = buffers.copies([variable.read_value()])[0]
    where = address(first)
    np.testing.assert_array_equal(first, np.arange(SIZE))
    variable.assign_add(tf.ones([SIZE]))
    np.testing.assert_array_equal(first, np.arange(SIZE))
    del first
    second = buffers.copies([variable.read_value()])[0]
    assert address(second) == where
    np.testing.assert_array_equal(second, np.arange(SIZE) + 1)


def test_what_is_held_stays_as_it_was() -> None:
    variable = tf.Variable(tf.zeros([SIZE, 2]))
    buffers = Buffers()
    view = buffers.copies([variable.read_value()])[0].reshape(-1).view(np.uint8)
    for value in range(1, 4):
        variable.assign(tf.fill([SIZE, 2], float(value)))
        (copy,) = buffers.copies([variable.read_value()])
        assert copy.shape == (SIZE, 2)
        assert (copy == value).all()
        assert not np.shares_memory(copy, view)
    assert not view.any()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "int64", "bool", "float32"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (1024, 1100)])
def test_each_type_and_size(name: str, shape: tuple[int, ...]) -> None:
    value = tf.cast(tf.random.uniform(shape, 0, 100), name)
    (copy,) = Buffers().copies([value])
    assert copy.shape == shape
    assert copy.dtype.name == name
    np.testing.assert_array_equal(copy, value.numpy())


def test_workers_gather_also_if_functions_run_eagerly() -> None:
    def gather(rows: Any, axis: int) -> Any:
        assert not tf.executing_eagerly()  # TensorFlow cannot gather then
        return tf.concat([rows, rows], axis)

    strategy = types.SimpleNamespace(gather=gather)
    tf.config.run_functions_eagerly(True)
    try:
        found = StrategyReplicas(strategy)._gather(tf.constant([[1, 2]]))
    finally:
        tf.config.run_functions_eagerly(False)
    assert found.numpy().tolist() == [[1, 2], [1, 2]]
