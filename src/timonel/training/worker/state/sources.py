"""Select the feed for the training data of a ``fit`` call."""

from __future__ import annotations

from typing import Any

from timonel.training.worker.inputs.fit_data import is_dataset
from timonel.training.worker.private import hidden_state, tf_data
from timonel.training.worker.state.arrays import feed_of_arrays
from timonel.training.worker.state.data_position import Feed, StreamFeed
from timonel.training.worker.state.generators import feed_of_generator
from timonel.training.worker.state.replays import feed_of_pipeline
from timonel.training.worker.state.sequences import feed_of_sequence


def feed_of(keras: Any, arguments: dict[str, Any], number: int, *, resumes: bool) -> Feed:
    """Return the feed for a call; may modify the call's arguments.

    Args:
        keras: Keras of the model.
        arguments: Arguments of the call.
        number: Number of the call: calls on the same arrays shuffle them differently.
        resumes: Whether the call resumes from a checkpoint.
    """
    data = arguments.get("x")
    seed = hidden_state.global_seed() + number
    if is_dataset(data):
        stream = tf_data.stream_behind_maps(data)
        if stream is not None:
            return StreamFeed(stream, "timonel.data.load goes on at its exact batch")
        return feed_of_pipeline(arguments, resumes=resumes)
    return (
        feed_of_arrays(keras, arguments, seed)
        or feed_of_sequence(keras, arguments, seed)
        or feed_of_generator(keras, arguments)
        or Feed()
    )
