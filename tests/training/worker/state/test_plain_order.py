"""Orders of shuffled pipelines, compared with plain Keras: uninterrupted, resumed, and after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from timonel.training.worker.state.replays import ReplayFeed

EPOCHS, STEPS = 4, 4


def data() -> tf.data.Dataset:
    tf.random.set_seed(3)
    return tf.data.Dataset.range(8).shuffle(8, seed=4).batch(2)


def feed_of(pipeline: tf.data.Dataset) -> ReplayFeed:
    return ReplayFeed(pipeline, keeps_pass=False, wraps=True, looks_ahead=True)


def batches_of_keras(pipeline: tf.data.Dataset, epochs: int = EPOCHS) -> Iterator[Any]:
    """Yield the batches of an epoch at a time, read as ``fit`` does."""
    # Keras expects pairs, for example.
    iterator = TFEpochIterator(x=pipeline, distribute_strategy=tf.distribute.get_strategy())
    for _ in range(epochs):
        yield (next(batches).numpy().tolist() for _, _, batches in iterator)


def epochs_of_keras(pipeline: tf.data.Dataset) -> list[Any]:
    return [list(batches) for batches in batches_of_keras(pipeline)]


def epochs_of(feed: ReplayFeed, first: int = 0) -> tuple[list[Any], list[Any]]:
    """Return the batches of each epoch, and the position after each."""
    found, positions = [], []
    for epoch, batches in enumerate(batches_of_keras(feed.dataset, EPOCHS - first), start=first):
        feed.epoch_begins(epoch)
        feed.step_begins(epoch * STEPS)
        found.append(list(batches))
        feed.steps_end()
        positions.append(feed.position((epoch + 1) * STEPS))
    return found, positions


# With a strategy, Keras builds a model from a batch of a pass that it then leaves.
@pytest.mark.parametrize(
    ("reads_ahead", "reads_again"), [(False, False), (True, False), (True, True)]
)
def test_a_shuffled_pipeline_has_the_order_of_plain_keras(
    reads_ahead: bool, reads_again: bool
) -> None:
    plain, inner = data(), data()
    feed = feed_of(inner)
    if reads_ahead:
        next(iter(plain))
        next(iter(feed.dataset))
    expected = epochs_of_keras(plain)
    assert len({str(each) for each in expected}) == EPOCHS
    found, positions = epochs_of(feed)
    assert found == expected
    for epoch, position in enumerate(positions[:-1], start=1):
        again = feed_of(data())
        if reads_again:
            next(iter(again.dataset))
        again.seek(position, epoch * STEPS, within=False)
        assert epochs_of(again, epoch)[0] == expected[epoch:]
    # Another call of fit on the same pipeline.
    finished = data()
    feed_of(finished).seek_end(positions[-1])
    assert epochs_of_keras(finished) == epochs_of_keras(inner)
