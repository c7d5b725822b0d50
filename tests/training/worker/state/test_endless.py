"""Pipelines without an end, as ``steps_per_epoch`` wants them."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("looks_again", [False, True])
def test_a_pipeline_without_an_end_goes_on_where_it_was(looks_again: bool) -> None:
    import tensorflow as tf

    from timonel.training.worker.state.replays import ReplayFeed

    def made() -> ReplayFeed:
        tf.random.set_seed(3)
        data = tf.data.Dataset.range(10).shuffle(10, seed=4).batch(2).repeat()
        return ReplayFeed(data, keeps_pass=True, wraps=True)

    feed = made()
    next(iter(feed.dataset))  # Keras looks at a first batch, to build the model
    feed.epoch_begins(0)
    feed.step_begins(0)
    batches = iter(feed.dataset)
    seen = [next(batches).numpy().tolist() for _ in range(9)]
    position = feed.position(4)
    again = made()
    if looks_again:
        next(iter(again.dataset))  # Keras does so under several workers, built or not
    assert again.seek(position, 4, within=True) == 4
    rest = iter(again.dataset)
    assert [next(rest).numpy().tolist() for _ in range(5)] == seen[4:]
