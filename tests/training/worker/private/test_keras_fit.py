"""Fails when a release of TensorFlow or Keras moves what training leans on."""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras.src import losses
from keras.src.backend.tensorflow import trainer
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers import LossScaleOptimizer, base_optimizer
from tensorflow.python.checkpoint import checkpoint, checkpoint_management
from tensorflow.python.eager import context

from timonel.errors import SpecError, TimonelError
from timonel.training.worker.private import (
    keras_fit,
    optimizers,
    tf_data,
)


def test_the_hooks_still_have_their_places() -> None:
    assert list(inspect.signature(trainer.reduce_per_replica).parameters) == [
        "values",
        "strategy",
        "reduction",
    ]
    build = inspect.signature(trainer.TensorFlowTrainer._maybe_symbolic_build)
    assert list(build.parameters)[1:] == ["iterator", "data_batch"]
    assert "data_batch" in inspect.signature(keras.Model._symbolic_build).parameters
    source = inspect.getsource(trainer.TensorFlowTrainer.fit)
    assert "self._maybe_symbolic_build(iterator=epoch_iterator)" in source
    assert "experimental_distribute_dataset" in inspect.getsource(trainer.TFEpochIterator)


def test_losses_are_still_scaled_in_the_places_that_are_changed() -> None:
    assert "scale_loss_for_distribution(loss)" in inspect.getsource(losses.loss.reduce_values)
    reduction = inspect.getsource(losses.loss.reduce_weighted_values)
    assert "= reduce_values(values, sample_weight, reduction)" in reduction
    call = inspect.getsource(losses.Loss.__call__)
    assert "losses = self.call(y_true, y_pred)" in call
    assert "return reduce_weighted_values(\n" in call
    wrapper = inspect.getsource(keras.metrics.MeanMetricWrapper.update_state)
    assert "self._fn(y_true, y_pred, **self._fn_kwargs)" in wrapper
    assert "return super().update_state(values, sample_weight=sample_weight)" in wrapper
    aggregate = inspect.getsource(trainer.TensorFlowTrainer._aggregate_additional_loss)
    assert "loss_module.scale_loss_for_distribution(loss)" in aggregate
    layer = keras.layers.Layer
    assert "self._losses.extend(losses)" in inspect.getsource(layer.add_loss)
    assert "self._losses.clear()" in inspect.getsource(layer._clear_losses)
    assert "return self._losses[:]" in inspect.getsource(layer._get_own_losses)
    step = inspect.getsource(trainer.TensorFlowTrainer.train_step)
    assert "loss_module.unscale_loss_for_distribution(loss)" in step
    assert "self._make_function(self.test_step)" in inspect.getsource(
        trainer.TensorFlowTrainer.make_test_function
    )
    package = Path(importlib.util.find_spec("tf_keras").origin).parent / "src"
    compiled = (package / "engine" / "compile_utils.py").read_text()
    assert "losses_utils.scale_loss_for_distribution(\n" in compiled
    assert "self._get_loss_object, self._losses" in compiled
    assert "tf.add_n(regularization_losses)" in compiled
    called = (package / "losses.py").read_text()
    assert "losses_utils.apply_valid_mask(\n" in called
    assert "reduction = self._get_reduction()" in called
    assert "return losses_utils.compute_weighted_loss(\n" in called
    training = (package / "engine" / "training.py").read_text()
    for name in ("train", "test", "predict"):
        assert f"model.{name}_step(data)" in training
    assert training.count(" = reduce_per_replica(") == 4


def test_the_coordination_service_can_still_be_configured() -> None:
    parameters = inspect.signature(context.Context.configure_coordination_service).parameters
    assert {"service_type", "service_leader", "coordinated_jobs", "heartbeat_timeout_in_ms"} <= set(
        parameters
    )
    assert context.coordination_config_pb2.CoordinatedJob(name="chief", num_tasks=1).num_tasks == 1


def test_these_releases_are_supported() -> None:
    keras_fit.require_supported("keras", keras.__version__)
    keras_fit.require_supported("tf_keras", "2.21.0")


@pytest.mark.parametrize(("flavour", "version"), [("keras", "3.99.0"), ("tf_keras", "3.0.0")])
def test_an_unknown_release_is_refused(flavour: str, version: str) -> None:
    with pytest.raises(TimonelError, match=f"got {version}.*pip install"):
        keras_fit.require_supported(flavour, version)


def test_where_a_dataset_came_from_can_still_be_seen() -> None:
    first = tf.data.Dataset.range(4).batch(2)
    assert tf_data.dataset_inputs(first.prefetch(1)) == [first]
    assert tf_data.dataset_inputs(3) == []
    assert tf_data.compute_batch_size(first) == 2


def test_optimizers_still_go_the_ways_that_are_changed() -> None:
    apply = inspect.getsource(base_optimizer.BaseOptimizer.apply)
    assert "self._backend_apply_gradients(grads, trainable_variables)" in apply
    assert "self._all_reduce_sum_gradients(grads_and_vars)" in inspect.getsource(
        TFOptimizer._backend_update_step
    )
    assert "self.inner_optimizer.build(var_list)" in inspect.getsource(LossScaleOptimizer.build)
    current = inspect.getsource(base_optimizer.BaseOptimizer.learning_rate.fget)
    assert "self._get_current_learning_rate()" in current
    package = Path(importlib.util.find_spec("tf_keras").origin).parent / "src"
    optimizer = (package / "optimizers" / "optimizer.py").read_text()
    assert "grads_and_vars = self.aggregate_gradients(grads_and_vars)" in optimizer
    assert "return super().apply_gradients(grads_and_vars, name=name)" in optimizer
    wrapper = (package / "mixed_precision" / "loss_scale_optimizer.py").read_text()
    assert "self._optimizer.aggregate_gradients(grads_and_vars)" in wrapper


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"gradient_accumulation_steps": 3}, "--accumulate-gradients"),
        ({"use_ema": True, "ema_overwrite_frequency": 2}, "use_ema alone works"),
        ({"use_ema": True}, None),
    ],
)
def test_updates_within_conditions_are_refused_on_several_replicas(
    options: dict[str, Any], cure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = keras.optimizers.SGD(**options)
    optimizers._require_updates_without_conditions(optimizer)
    two = SimpleNamespace(num_replicas_in_sync=2)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: two)
    if cure is None:
        optimizers._require_updates_without_conditions(optimizer)
        return
    with pytest.raises(SpecError, match=rf"SGD\(.*does not work with several replicas.*{cure}"):
        optimizers._require_updates_without_conditions(optimizer)


def test_updates_within_other_graphs_are_refused_on_several_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = SimpleNamespace(num_replicas_in_sync=2)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: two)
    step = tf.Graph()
    monkeypatch.setattr(threading.current_thread(), "graph", step, raising=False)
    with step.as_default():
        optimizers._require_updates_without_conditions(object())
    with tf.Graph().as_default(), pytest.raises(SpecError, match=r"tf\.cond.*--accumulate-grad"):
        optimizers._require_updates_without_conditions(object())


def test_lists_of_checkpoints_are_still_written_and_read_in_the_places_that_are_changed() -> None:
    manager = inspect.getsource(checkpoint_management.CheckpointManager)
    assert "update_checkpoint_state_internal(\n" in manager
    assert "recovered_state = get_checkpoint_state(directory)" in manager
    assert '_delete_file_if_exists(filename + ".index")' in manager
    update = checkpoint_management.update_checkpoint_state_internal
    assert next(iter(inspect.signature(update).parameters)) == "save_dir"
    for function in (update, checkpoint_management.get_checkpoint_state):
        assert "latest_filename" in inspect.signature(function).parameters
        assert "coord_checkpoint_filename = _GetCheckpoint" in inspect.getsource(function)
    latest = inspect.getsource(checkpoint_management.latest_checkpoint)
    assert "_prefix_to_checkpoint_path(ckpt.model_checkpoint_path" in latest
    assert "management.update_checkpoint_state_internal(" in inspect.getsource(
        checkpoint._update_checkpoint_state_internal
    )


def test_workers_concatenate_predictions_also_if_functions_run_eagerly() -> None:
    def concatenate(values: Any, *_: Any) -> Any:
        assert not tf.executing_eagerly()  # TensorFlow cannot gather then
        return values

    extended = SimpleNamespace(_in_multi_worker_mode=lambda: True)
    found = keras_fit._with_mean_over_workers(
        concatenate, tf.constant([1, 2]), _Strategy(extended), "concat"
    )
    assert found.numpy().tolist() == [1, 2]


@dataclass(eq=False)
class _Strategy:
    extended: Any


PROGRAM = """
import keras
import numpy as np
import tensorflow as tf
from timonel.training.worker.private import keras_fit

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras_fit.install_keras_hooks()


class Compile(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if not epoch:
            self.model.compile("sgd", "mae", metrics=["mse"])
            self.model.make_train_function()


with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
given = np.ones((8, 2)), np.ones((8, 1))
history = model.fit(*given, batch_size=4, epochs=2, verbose=0, callbacks=[Compile()]).history
print(sorted(history), len(history["mse"]))
"""

ORDERS = """
import json
import keras
import numpy as np
import tensorflow as tf
from timonel.training.worker.private import keras_fit

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras_fit.install_keras_hooks()


def losses(strategy):
    keras.utils.set_random_seed(3)
    x = np.arange(64, dtype="float32").reshape(32, 2)
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(32, seed=3).batch(8)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
    return model.fit(data, epochs=3, verbose=0).history["loss"]


two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(json.dumps([losses(tf.distribute.get_strategy()), losses(two)]))
"""


@pytest.mark.process
def test_a_callback_compiles_on_two_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "['loss', 'mse'] 1"


@pytest.mark.process
def test_two_devices_have_the_order_of_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORDERS], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = json.loads(done.stdout.splitlines()[-1])
    assert two == pytest.approx(one, rel=1e-6)
