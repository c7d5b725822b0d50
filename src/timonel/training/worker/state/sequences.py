"""``keras.utils.PyDataset`` (``Sequence``) as training data, with batches by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from timonel.data.load_registry import Stream
from timonel.data.loader import steps_of
from timonel.data.schedule import Schedule
from timonel.training.worker.state import callback_state
from timonel.training.worker.state.data_position import Feed, StreamFeed
from timonel.training.worker.state.elements import Elements, can_be_elements

_LARGEST_STATE = 1 << 24
_PREFETCHED = 2


class SequenceFeed(StreamFeed):
    """Position in a sequence, and the sequence's own state between epochs.

    Args:
        sequence: Sequence of the script.
        stream: Order of its batches.
    """

    def __init__(self, sequence: Any, stream: Stream) -> None:
        super().__init__(
            stream,
            f"{type(sequence).__name__} goes on at its exact batch; what it draws from global "
            "random state is not repeated",
        )
        self._sequence = sequence
        self._is_begun = False

    def epoch_begins(self, epoch: int) -> None:
        """Call the sequence's ``on_epoch_begin``, as Keras does."""
        super().epoch_begins(epoch)
        self._is_begun = True
        getattr(self._sequence, "on_epoch_begin", lambda: None)()

    def steps_end(self) -> None:
        """Call the sequence's ``on_epoch_end``, as Keras does."""
        super().steps_end()
        if self._is_begun:
            self._is_begun = False
            getattr(self._sequence, "on_epoch_end", lambda: None)()

    def position(self, trained: int) -> dict[str, Any]:
        """Return the position with the sequence's own state.

        For example an order that it has shuffled.
        """
        (state,) = callback_state.capture([self._sequence])
        if "get_state" not in dir(self._sequence):
            state["state"] = {n: v for n, v in state["state"].items() if _is_small(v)}
        return {**super().position(trained), "own": state}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Restore the position and the sequence's own state."""
        if "own" in position:
            callback_state.restore([self._sequence], [position["own"]])
        return super().seek(position, trained, within=within)


def feed_of_sequence(keras: Any, arguments: dict[str, Any], seed: int) -> Feed | None:
    """Replace a sequence by a dataset and return its feed.

    None if the data are no sequence.

    A sequence that uses multiprocessing is left to Keras: its data restart with each epoch.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    data = arguments.get("x")
    kind = getattr(keras.utils, "PyDataset", keras.utils.Sequence)
    if not isinstance(data, kind) or _wants_processes(data, arguments):
        return None
    count = _length(data)
    examples = [data[number] for number in range(min(2, count or 0))]
    if not examples or not all(can_be_elements(batch) for batch in examples):
        return None
    assert count is not None
    elements = Elements(keras, examples)
    shuffle = bool(arguments.get("shuffle", True))
    stream = Stream(None, Schedule(count, 1, shuffle=shuffle, seed=seed))

    def batch(number: Any) -> Any:
        leaves = tf.numpy_function(
            lambda place: elements.flat(data[int(place[0])]), [number], elements.dtypes
        )
        return elements.packed(leaves)

    workers = int(getattr(data, "workers", None) or arguments.get("workers") or 1)
    dataset = steps_of(stream).map(batch, num_parallel_calls=workers, deterministic=True)
    options = tf.data.Options()
    options.autotune.enabled = False
    arguments["x"] = dataset.prefetch(_PREFETCHED).with_options(options)
    arguments["shuffle"] = False
    return SequenceFeed(data, stream)


def _wants_processes(data: Any, arguments: Mapping[str, Any]) -> bool:
    own = getattr(data, "use_multiprocessing", False)
    return bool(own or arguments.get("use_multiprocessing"))


def _length(data: Any) -> int | None:
    try:
        return getattr(data, "num_batches", None) or len(data)
    except (TypeError, NotImplementedError):
        return None


def _is_small(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or value.nbytes <= _LARGEST_STATE
