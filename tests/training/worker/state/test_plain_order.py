"""Orders of shuffled pipelines, compared with plain Keras."""

from __future__ import annotations

from typing import Any


def test_a_shuffled_pipeline_has_the_order_of_plain_keras() -> None:
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    from timonel.training.worker.state.replays import ReplayFeed

    def epochs(pipeline: Any, feed: ReplayFeed | None, first: int = 0) -> list[Any]:
        # Keras expects pairs, for example.
        iterator = TFEpochIterator(x=pipeline, distribute_strategy=tf.distribute.get_strategy())
        found = []
        for epoch in range(first, 4):
            if feed:
                feed.epoch_begins(epoch)
            steps = []
            for step, _, batches in iterator:
                if feed:
                    feed.step_begins(epoch * 4 + step)
                try:
                    steps.append(next(batches).numpy().tolist())
                except StopIteration:
                    break
            found.append(steps)
            if feed:
                feed.steps_end()
        return found

    def data() -> Any:
        tf.random.set_seed(3)
        return tf.data.Dataset.range(8).shuffle(8, seed=4).batch(2)

    feed = ReplayFeed(data(), keeps_pass=False, wraps=True, looks_ahead=True)
    expected = epochs(data(), None)
    assert len({str(each) for each in expected}) == 4
    assert epochs(feed.dataset, feed) == expected
    again = ReplayFeed(data(), keeps_pass=False, wraps=True, looks_ahead=True)
    again.seek({"pass": 2, "step": 4}, 8, within=False)
    assert epochs(again.dataset, again, first=2) == expected[2:]
