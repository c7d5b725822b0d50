"""Fails when a release of TensorFlow or Keras moves what parameter servers lean on."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.distribute import parameter_server_strategy_v2, ps_values
from tensorflow.python.distribute.coordinator import cluster_coordinator, coordinator_context
from tensorflow.python.framework import ops
from tf_keras.src.mixed_precision import autocast_variable

from timonel.training.worker.private import ps_variables


def test_the_coordinator_still_runs_python_functions_on_workers() -> None:
    parameters = inspect.signature(cluster_coordinator.Cluster.schedule).parameters
    assert list(parameters)[1:] == ["function", "args", "kwargs"]
    source = inspect.getsource(cluster_coordinator.Closure)
    assert "self._function = function" in source
    assert "with_dispatch_context(worker)" in source
    assert "put_back" in inspect.getsource(cluster_coordinator.Worker._on_closure_failure)
    assert hasattr(coordinator_context.DispatchContext, "worker_index")


def test_variables_are_still_made_where_it_can_be_seen() -> None:
    kind = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    assert list(inspect.signature(kind._create_variable).parameters)[1] == "next_creator"
    assert "_being_scheduled" in inspect.getsource(kind.__init__)
    assert "self._v = v" in inspect.getsource(ps_values.CachingVariable.__init__)


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_building_a_model_again_keeps_what_metrics_have_counted(flavour: Any) -> None:
    model = flavour.Sequential([flavour.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    rows = tf.ones([4, 2])
    ps_variables.build_compiled(model, rows, rows[:, :1], None)
    counts = [v for metric in model.metrics for v in metric.variables]
    assert counts
    assert all(float(v.numpy()) == 0.0 for v in counts)
    for number, variable in enumerate(counts):
        variable.assign(number + 1.0)
    ps_variables.build_compiled(model, rows, rows[:, :1], None)
    assert [float(v.numpy()) for v in counts] == [n + 1.0 for n in range(len(counts))]


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_a_variables_handle_can_still_be_replaced_while_a_function_is_traced(
    flavour: object,
) -> None:
    make = keras.Variable if flavour is keras else tf.Variable
    counted = make(3.0, name="counted")
    variable = ps_variables.raw(counted)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        handle = ps_variables.temporary(variable.dtype, variable.shape)
        tf.raw_ops.AssignVariableOp(resource=handle, value=variable.read_value())
        with ps_variables.handles([(variable, handle)]):
            counted.assign_add(1.0)
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)

    assert [float(step()), float(step())] == [4.0, 4.0]
    assert float(variable.read_value()) == 3.0


def test_a_variable_of_tf_keras_in_mixed_precision_is_still_found_below() -> None:
    inner = tf.Variable(1.0)
    assert ps_variables.raw(autocast_variable.create_autocast_variable(inner)) is inner


def test_an_optimizer_may_still_be_told_that_there_is_one_replica() -> None:
    extended = parameter_server_strategy_v2.ParameterServerStrategyV2Extended
    for name in ("_use_merge_call", "_replica_ctx_all_reduce", "update", "_update"):
        assert callable(getattr(extended, name))
    assert list(inspect.signature(extended._update).parameters) == [
        "self",
        "var",
        "fn",
        "args",
        "kwargs",
        "group",
    ]


def test_large_variables_are_spread_by_what_servers_hold() -> None:
    source = inspect.getsource(parameter_server_strategy_v2.ParameterServerStrategyV2Extended)
    assert "self._variable_count % self._num_ps" in source
    made: list[int] = []
    extended = types.SimpleNamespace(_num_ps=2, _variable_count=0)

    def create(_: object, *, shape: tuple[int, ...]) -> object:
        made.append(extended._variable_count)
        return types.SimpleNamespace(
            device=f"/job:ps/replica:0/task:{made[-1]}/device:CPU:0",
            dtype=tf.float32,
            shape=tf.TensorShape(shape),
        )

    extended._create_variable = create
    ps_variables.place_variables(
        types.SimpleNamespace(extended=extended), lambda _: False, "/device:CPU:0"
    )
    for rows in (100, 1, 100, 1, 1, 300):
        extended._create_variable(None, shape=(rows, 2))
    assert made == [0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_steps_per_execution_are_still_found(flavour: object) -> None:
    layers = flavour.layers  # type: ignore[attr-defined] # either Keras
    model = flavour.Sequential([layers.Input((2,)), layers.Dense(1)])  # type: ignore[attr-defined]
    model.compile("sgd", "mse", steps_per_execution=3)
    assert ps_variables.steps_per_execution(model) == 3
    assert ps_variables.whole_executions(model, 7) == (9 if flavour is keras else 7)


def test_scopes_can_still_be_left_and_entered_again() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        with ps_variables.outside_scope():
            assert not tf.distribute.has_strategy()
            with strategy.scope():
                assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.get_strategy() is strategy
    graph = ops.get_default_graph()
    assert (graph._distribution_strategy_stack, graph._variable_creator_stack) == ([], [])


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_models_still_keep_their_strategy_and_functions_there(flavour: object) -> None:
    layers = flavour.layers  # type: ignore[attr-defined] # either Keras
    model = flavour.Sequential([layers.Input((2,)), layers.Dense(1)])  # type: ignore[attr-defined]
    assert hasattr(model, ps_variables.strategy_attribute(model))
    for name in ("make_train_function", "make_test_function", "train_step", "test_step"):
        assert callable(getattr(model, name))
    assert (ps_variables.train_counter(model) is not None) == (flavour is tf_keras)
    assert callable(flavour.metrics.Metric.add_weight)  # type: ignore[attr-defined]


def test_seeds_of_keras_3_still_have_their_name() -> None:
    state = keras.random.SeedGenerator(1).state
    assert ps_variables.is_seed(ps_variables.raw(state))


def test_a_variable_that_keras_makes_later_is_made_where_it_belongs() -> None:
    inside: list[bool] = []

    @contextlib.contextmanager
    def place() -> Iterator[None]:
        inside.append(True)
        yield
        inside.append(False)

    with keras.StatelessScope():
        variable = keras.Variable(lambda *_, **__: tf.constant(1.0 if inside else 0.0), shape=())
        ps_variables.make_later_within(variable, place)
        assert not inside
    assert (inside, float(variable)) == ([True, False], 1.0)
    assert "_deferred_initialize" not in vars(variable)


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_the_results_of_metrics_are_noted(flavour: Any) -> None:
    metric = flavour.metrics.Mean(name="mine")
    noted: list[Any] = []
    before = vars(metric).get("result")
    with ps_variables.noting_results(types.SimpleNamespace(metrics=[metric]), noted):
        found = metric.result()
    assert [(value is found, which is metric, key) for value, which, key in noted] == [
        (True, True, None)
    ]
    assert vars(metric).get("result") is before
