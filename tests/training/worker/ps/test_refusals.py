"""Steps that change what nobody could take back, or that need the script, are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.worker.ps.refusals import refuse_python, refuse_writes


def _graph(function: Callable[[], Any]) -> Any:
    return tf.function(function, autograph=False).get_concrete_function().graph


def test_a_step_that_calls_python_is_refused() -> None:
    refuse_python(_graph(lambda: tf.add(1.0, 2.0)))
    with pytest.raises(TimonelError, match="a train step that calls Python"):
        refuse_python(_graph(lambda: tf.py_function(lambda: 1.0, [], tf.float32)))
    inner = tf.function(lambda: tf.numpy_function(lambda: 1.0, [], tf.float32), autograph=False)
    with pytest.raises(TimonelError, match="a train step that calls Python"):
        refuse_python(_graph(inner))


def test_a_step_that_assigns_a_trained_variable_is_refused() -> None:
    weight = tf.Variable([1.0, 2.0], name="weight")
    names = {id(weight): weight}
    refuse_writes(_graph(lambda: weight * 2.0), names)
    refuse_writes(_graph(lambda: tf.gather(weight, [1])), names)
    with pytest.raises(TimonelError, match=r"assigns weight:0 .*\(AssignAddVariableOp\)"):
        refuse_writes(_graph(lambda: weight.assign_add([1.0, 1.0]).read_value()), names)
