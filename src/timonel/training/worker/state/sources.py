"""Choose the feed for a ``fit`` call's training data; feeds for sequences and generators."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.data.load_registry import Stream
from timonel.data.loader import steps_of
from timonel.data.schedule import Schedule
from timonel.errors import TimonelError
from timonel.training.worker.inputs.fit_data import is_dataset
from timonel.training.worker.private import hidden_state, tf_data
from timonel.training.worker.state import python_state
from timonel.training.worker.state.arrays import feed_of_arrays, lists_to_tuples
from timonel.training.worker.state.data_position import Feed, StreamFeed
from timonel.training.worker.state.flat import checksum
from timonel.training.worker.state.replays import ReplayFeed, feed_of_pipeline, feed_of_validation

logger = logging.getLogger(__name__)


class Elements:
    """Structure and types of batches; the first axis and sizes that differ are unknown."""

    def __init__(self, keras: Any, examples: Sequence[Any]) -> None:
        self._floatx = keras.backend.floatx()
        shapes = [self._leaves(example) for example in examples]
        self.specs = tuple(
            tf.TensorSpec(
                [None, *_common([leaves[place].shape[1:] for leaves in shapes])], leaf.dtype
            )
            for place, leaf in enumerate(shapes[0])
        )
        self._nested = tf.nest.pack_sequence_as(lists_to_tuples(examples[0]), self.specs)

    def flat(self, batch: Any) -> tuple[Any, ...]:
        """Flatten a batch to its arrays."""
        return tuple(self._leaves(batch))

    def packed(self, leaves: Sequence[Any]) -> Any:
        """Pack tensors into the batches' structure."""
        for leaf, spec in zip(leaves, self.specs, strict=True):
            leaf.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(self._nested, list(leaves))

    def _leaves(self, batch: Any) -> list[Any]:
        found = [np.asarray(leaf) for leaf in tf.nest.flatten(lists_to_tuples(batch))]
        return [leaf.astype(self._floatx) if leaf.dtype.kind == "f" else leaf for leaf in found]


def can_be_elements(batch: Any) -> bool:
    """Whether a batch consists of arrays only."""
    leaves = tf.nest.flatten(lists_to_tuples(batch))
    return bool(leaves) and all(
        hasattr(leaf, "shape") and len(leaf.shape) > 0 and not hasattr(leaf, "indices")
        for leaf in leaves
    )


def _common(shapes: Sequence[Sequence[int]]) -> list[int | None]:
    return [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]


_PREFETCHED = 2
_OWN = "own"


class EpochwiseSequenceFeed(Feed):
    """A sequence whose state between epochs, such as an order of its own, is kept.

    Arrays that did not change are data. Keras may read it in processes of its own.
    """

    def __init__(self, sequence: Any) -> None:
        self._sequence, self._origins = sequence, python_state.Origins(sequence)
        self._data = {name: checksum(value) for name, value in self._arrays().items()}

    def position(self, trained: int) -> dict[str, Any]:
        """Return the position with the sequence's own state."""
        found = self._arrays()
        unchanged = {n for n, crc in self._data.items() if n in found and checksum(found[n]) == crc}
        own, self.lost = python_state.capture(self._sequence, unchanged, self._origins)
        return {**super().position(trained), _OWN: own}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Restore the position and the sequence's own state."""
        self.seek_end(position)
        rest = {name: value for name, value in position.items() if name != _OWN}
        return super().seek(rest, trained, within=within)

    def seek_end(self, position: Mapping[str, Any]) -> None:
        """Restore the sequence's own state."""
        if _OWN in position:
            self.lost = python_state.restore(
                self._sequence, position[_OWN], lambda _: False, self._origins
            )

    def _arrays(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self._sequence).items()
            if isinstance(value, np.ndarray) and not value.dtype.hasobject
        }


class SequenceFeed(EpochwiseSequenceFeed, StreamFeed):
    """Position in a sequence that this process reads, and its state between epochs."""

    def __init__(self, sequence: Any, stream: Stream) -> None:
        EpochwiseSequenceFeed.__init__(self, sequence)
        StreamFeed.__init__(
            self,
            stream,
            f"{type(sequence).__name__} goes on at its exact batch; what it draws from global "
            "random state is not repeated",
        )
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


def feed_of_sequence(keras: Any, arguments: dict[str, Any], seed: int) -> Feed | None:
    """Replace a sequence by a dataset; return its feed, None if the data are no sequence."""
    # A sequence that uses multiprocessing is left to Keras: its data restart with each epoch.
    data = arguments.get("x")
    kind = getattr(keras.utils, "PyDataset", keras.utils.Sequence)
    if not isinstance(data, kind):
        return None
    if getattr(data, "use_multiprocessing", False) or arguments.get("use_multiprocessing"):
        return EpochwiseSequenceFeed(data)
    count = _length(data)
    examples = [data[number] for number in range(min(2, count or 0))]
    if not examples or not all(can_be_elements(batch) for batch in examples):
        return EpochwiseSequenceFeed(data)
    assert count is not None
    elements = Elements(keras, examples)
    shuffle = bool(arguments.get("shuffle", True))
    stream = Stream(None, Schedule(count, 1, shuffle=shuffle, seed=seed))

    def batch(number: Any) -> Any:
        leaves = tf.numpy_function(
            lambda place: elements.flat(data[int(place[0])]),
            [number],
            [spec.dtype for spec in elements.specs],
        )
        return elements.packed(leaves)

    workers = int(getattr(data, "workers", None) or arguments.get("workers") or 1)
    dataset = steps_of(stream).map(batch, num_parallel_calls=workers, deterministic=True)
    arguments["x"] = tf_data.without_tuner(dataset.prefetch(_PREFETCHED))
    arguments["shuffle"] = False
    return SequenceFeed(data, stream)


def _length(data: Any) -> int | None:
    try:
        return getattr(data, "num_batches", None) or len(data)
    except (TypeError, NotImplementedError):
        return None


_LOOKED_AT = 2
_READ_BY_FINISHED: weakref.WeakSet[Any] = weakref.WeakSet()
"""Generators of calls that had finished before the restart."""


class GeneratorFeed(Feed):
    """Position in a generator, which yields the same batches each time; as thread-safe as it."""

    can_seek = True
    note = (
        "the generator is read again from its beginning to where it was; what it draws from "
        "global random state is not repeated"
    )

    def __init__(self, generator: Iterator[Any]) -> None:
        self._generator = generator
        self._lock = threading.Lock()
        self._batches: deque[Any] = deque()
        self._first = 0
        self._trained = 0
        self._is_over = False

    def look(self) -> list[Any]:
        """Return the first batches without consuming them."""
        with self._lock:
            self._read_to(_LOOKED_AT)
            return list(self._batches)

    def step_begins(self, trained: int) -> None:
        """Drop the batches before this step."""
        with self._lock:
            self._trained = trained
            while self._first < trained and self._batches:
                self._batches.popleft()
                self._first += 1

    def position(self, trained: int) -> dict[str, Any]:
        """Return the number of batches trained on."""
        return {"batches": trained}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Read that many batches again; a generator has a single pass."""
        del position, within
        logger.info("Reading the generator again for %d batches.", trained)
        while not self._is_over and self._first < trained:
            with self._lock:
                self._read_to(self._first + 1)
            self.step_begins(self._first + 1)
        self.step_begins(trained)
        return trained

    def seek_end(self, position: Mapping[str, Any]) -> None:
        """Note that a call has read an unknown number of batches ahead."""
        del position
        _READ_BY_FINISHED.add(self._generator)

    def batches(self) -> Iterator[Any]:
        """Yield batches, starting at the first that was not trained on."""
        number = self._trained
        while True:
            with self._lock:
                self._read_to(number + 1)
                place = number - self._first
                if not 0 <= place < len(self._batches):
                    return
                batch = self._batches[place]
            yield batch
            number += 1

    def _read_to(self, number: int) -> None:
        while not self._is_over and self._first + len(self._batches) < number:
            try:
                self._batches.append(next(self._generator))
            except StopIteration:
                self._is_over = True


def feed_of_generator(keras: Any, arguments: dict[str, Any]) -> Feed | None:
    """Replace a generator by a dataset; return its feed, None if the data are no generator."""
    data: Any = arguments.get("x")
    if not hasattr(data, "__next__") or not hasattr(data, "__iter__"):
        return None
    if data in _READ_BY_FINISHED:
        raise TimonelError(
            "cannot resume: calls of fit share a generator, of which a finished one has read ahead",
            hint="make a new generator for each call of fit",
        )
    feed = GeneratorFeed(data)
    examples = feed.look()
    if not examples or not all(can_be_elements(batch) for batch in examples):
        arguments["x"] = feed.batches()
        return Feed()
    elements = Elements(keras, examples)
    dataset = tf.data.Dataset.from_generator(
        lambda: map(elements.flat, feed.batches()), output_signature=elements.specs
    )
    arguments["x"] = dataset.map(lambda *leaves: elements.packed(leaves)).prefetch(_PREFETCHED)
    arguments["shuffle"] = False
    return feed


def keeps_state(data: Any) -> bool:
    """Return whether data differ from one call of ``fit`` to the next."""
    if is_dataset(data):
        return tf_data.memory_of(data).shuffles > 0
    return hasattr(data, "__next__") or hasattr(data, "on_epoch_end")


def feed_of(keras: Any, arguments: dict[str, Any], number: int, *, resumes: bool) -> Feed:
    """Return the feed for a call's data; may modify the call's arguments."""
    feed = _feed_of_training(keras, arguments, number, resumes=resumes)
    feed.validation = validation = feed_of_validation(arguments)
    if isinstance(feed, ReplayFeed) and isinstance(validation, ReplayFeed):
        feed.share_order(validation, is_whole=arguments.get("validation_steps") is None)
    return feed


def _feed_of_training(keras: Any, arguments: dict[str, Any], number: int, *, resumes: bool) -> Feed:
    data = arguments.get("x")
    seed = hidden_state.global_seed() + number
    if is_dataset(data):
        stream = tf_data.stream_behind_maps(data)
        if stream is not None:
            return StreamFeed(stream, "timonel.data.load goes on at its exact batch")
        return feed_of_pipeline(keras, arguments, resumes=resumes)
    return (
        feed_of_arrays(keras, arguments, seed)
        or feed_of_sequence(keras, arguments, seed)
        or feed_of_generator(keras, arguments)
        or Feed()
    )
