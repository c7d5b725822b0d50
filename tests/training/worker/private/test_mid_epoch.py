"""Fails when a release of TensorFlow or a Keras moves what resuming leans on."""

from __future__ import annotations

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras.src.trainers.epoch_iterator import EpochIterator
from tf_keras.src.engine.data_adapter import DataHandler

from timonel.training.worker.private import hidden_state, mid_epoch, tf_data


def test_the_names_of_state_are_still_there() -> None:
    tf.random.set_seed(1)  # which makes one of them
    generator = hidden_state.seed_generators()["tensorflow"]
    state = generator.getstate()
    tf.random.uniform(())
    assert generator.getstate() != state
    tf_keras.utils.set_random_seed(1)
    assert hidden_state.seed_generators()["tf_keras"] is not None
    assert hidden_state.global_seed() == 1


def test_backups_of_both_kerases_are_still_restored_where_we_think() -> None:
    ours = inspect.getsource(keras.callbacks.BackupAndRestore.on_train_begin)
    assert "self._load_model()" in ours
    theirs = inspect.getsource(tf_keras.callbacks.BackupAndRestore.on_train_begin)
    assert "self._training_state.restore()" in theirs
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    hidden_state.count_steps(model, 3)
    assert int(model._train_counter.numpy()) == 3


def test_fit_of_keras_3_still_numbers_its_steps_as_we_do() -> None:
    source = inspect.getsource(inspect.unwrap(keras.Model.fit))
    assert "for begin_step, end_step, iterator in epoch_iterator:" in source
    assert "logs = self.train_function(iterator)" in source
    assert "self.make_train_function()" in source
    names = {"steps_per_epoch", "steps_per_execution", "_num_batches", "_steps_seen"}
    iterator = EpochIterator(np.zeros((4, 1)), batch_size=2)
    assert names <= set(vars(iterator))
    assert [first for first, _, _ in mid_epoch._enumerate_from(iterator, 0, 0)] == [0, 1]
    assert [first for first, _, _ in mid_epoch._enumerate_from(iterator, 1, 1)] == [1]


def test_fit_of_tf_keras_can_still_be_entered() -> None:
    source = inspect.getsource(inspect.unwrap(tf_keras.Model.fit))
    assert "for step in data_handler.steps():" in source
    assert "self.train_function = self.make_train_function()" in source
    handler = DataHandler(np.zeros((4, 1)), batch_size=2)
    handler._initial_step = 1
    assert list(handler.steps()) == [1]
    assert list(handler.steps()) == [0, 1]


@pytest.mark.parametrize("flavour", [keras, tf_keras], ids=lambda found: found.__name__)
def test_dropout_draws_from_a_state_that_can_be_read(flavour: object) -> None:
    hidden_state.make_generators_restorable(flavour)
    layers = flavour.layers  # type: ignore[attr-defined] # one of two modules
    model = flavour.Sequential([layers.Input((8,)), layers.Dropout(0.5)])  # type: ignore[attr-defined]
    x = tf.ones((2, 8))
    model(x, training=True)
    found = [*model.variables, *dict(hidden_state.random_variables(model)).values()]
    before = [np.array(variable.numpy()) for variable in found]
    assert before
    first = np.asarray(model(x, training=True))
    for variable, value in zip(found, before, strict=True):
        variable.assign(value)
    assert np.array_equal(np.asarray(model(x, training=True)), first)


class Drawing:
    def __init__(self, state: np.random.Generator) -> None:
        self.state = state

    def draw(self) -> float:
        return float(self.state.normal())


def memory(dataset: tf.data.Dataset) -> tuple[int, bool, bool]:
    found = tf_data.memory_of(dataset)
    return found.shuffles, found.must_be_read, found.has_random_functions


def test_what_a_pipeline_remembers_can_still_be_seen() -> None:
    source = tf.data.Dataset.range(8)
    assert memory(source.batch(2).prefetch(1)) == (0, False, False)
    assert memory(source.shuffle(4).batch(2)) == (1, False, False)
    assert memory(source.shuffle(4, reshuffle_each_iteration=False)) == (0, False, False)
    assert memory(source.cache().shuffle(4).take(3)) == (1, False, False)
    assert memory(source.shuffle(4).cache()) == (1, True, False)
    assert memory(source.shuffle(4).repeat(2)) == (1, True, False)
    random = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)
    assert memory(random.batch(2)) == (1, False, False)
    assert memory(tf.data.Dataset.random(seed=1)) == (0, False, False)
    drawing = source.map(lambda x: tf.random.uniform(()), num_parallel_calls=2)
    assert memory(drawing) == (0, False, True)
    generator = tf.random.Generator.from_seed(1)
    assert memory(source.map(lambda x: generator.normal(()))) == (0, False, True)
    state = np.random.default_rng(1)
    for held in (state, functools.partial(state.normal), Drawing(state).draw):
        called = held if callable(held) else state.normal
        function = functools.partial(tf.numpy_function, called, [], tf.float64)
        assert memory(source.map(lambda x, f=function: f())) == (0, True, False)
    constant = functools.partial(tf.numpy_function, lambda: 1.0, [], tf.float64)
    assert memory(source.map(lambda x: constant())) == (0, False, False)
    # One call after the other begins the same sequence with each pass.
    assert memory(source.map(lambda x: tf.random.uniform(()))) == (0, False, False)
