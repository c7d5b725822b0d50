"""Choose the feed for a ``fit`` call's training data; feeds for sequences and generators."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.data.load_registry import Stream
from timonel.data.loader import steps_of
from timonel.data.schedule import Schedule
from timonel.errors import TimonelError
from timonel.training.worker.inputs.fit_data import is_dataset
from timonel.training.worker.private import hidden_state, mid_epoch, tf_data
from timonel.training.worker.state import python_state
from timonel.training.worker.state.arrays import feed_of_arrays, lists_to_tuples
from timonel.training.worker.state.data_position import NOT_SAVED, Feed, StreamFeed
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

    def __init__(self, keras: Any, sequence: Any) -> None:
        self._keras = keras
        self._sequence, self._origins = sequence, python_state.Origins(sequence)
        self._data = {name: checksum(value) for name, value in self._arrays().items()}

    def position(self, trained: int) -> dict[str, Any]:
        """Return the position with the sequence's own state."""
        return {**super().position(trained), _OWN: self._captured()}

    def restore(self, position: Mapping[str, Any], *, is_done: bool = False) -> None:
        """Restore the sequence's own state."""
        del is_done
        self._set(position.get(_OWN))

    def leave_epoch(self) -> None:
        """Call ``on_epoch_end``, which tf-keras does after all callbacks."""
        if self._keras.__name__ == "tf_keras":
            self._sequence.on_epoch_end()

    def _captured(self) -> dict[str, Any]:
        found = self._arrays()
        unchanged = {n for n, crc in self._data.items() if n in found and checksum(found[n]) == crc}
        own, self.lost = python_state.capture(self._sequence, unchanged, self._origins)
        return own

    def _set(self, own: Mapping[str, Any] | None, without: Collection[str] = ()) -> None:
        if own is not None:
            self.lost = python_state.restore(
                self._sequence, own, lambda name, _: name in without, self._origins
            )

    def _arrays(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self._sequence).items()
            if isinstance(value, np.ndarray) and not value.dtype.hasobject
        }


class ValidationSequenceFeed(EpochwiseSequenceFeed):
    """A sequence for validation: its state, before and after the last one."""

    def __init__(self, keras: Any, sequence: Any) -> None:
        super().__init__(keras, sequence)
        self._has_looked = self._looks_again = False
        self._before = self._now()
        mid_epoch.watch_looks(sequence, self._looking)

    def position(self, trained: int) -> dict[str, Any]:
        """Return the sequence's own state, and that before a validation that is running."""
        del trained
        before, self._before = self._before, self._now()
        return {**self._before, "before": before}

    def restore(self, position: Mapping[str, Any], *, is_done: bool = False) -> None:
        """Restore the sequence's own state."""
        found = position["before"] if is_done else position
        super().restore(found)
        self._has_looked = self._looks_again = found["has_looked"]
        self._before = self._now()

    def _now(self) -> dict[str, Any]:
        return {_OWN: self._captured(), "has_looked": self._has_looked}

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        # Each process looks at the first batches, which may change the sequence's state.
        before = self._captured() if self._looks_again else None
        yield
        self._set(before)
        self._has_looked, self._looks_again = True, False


class SequenceFeed(EpochwiseSequenceFeed, StreamFeed):
    """Position in a sequence that this process reads, and its state between epochs.

    Batches are read ahead. If that changes its state, those before the position are read again,
    from the state at the beginning of the epoch.
    """

    def __init__(self, keras: Any, sequence: Any, stream: Stream, *, is_whole: bool) -> None:
        EpochwiseSequenceFeed.__init__(self, keras, sequence)
        StreamFeed.__init__(
            self,
            stream,
            f"{type(sequence).__name__} goes on at its exact batch; what it draws from global "
            "random state is not repeated",
        )
        self._is_whole = is_whole  # an epoch is a pass
        self._ahead: list[str] = []
        self._begun: dict[str, Any] | None = None  # the state as the epoch began
        self._read_again: dict[str, Any] | None = None

    def note_changes(self, names: Collection[str]) -> None:
        """Note attributes that reading a batch changes."""
        if names and not self._is_whole:
            kind = type(self._sequence).__name__
            self._ahead = [f"{kind}.{name} (read ahead, with steps_per_epoch)" for name in names]
            self.note = f"{kind} goes on about where it was; {NOT_SAVED}: {', '.join(self._ahead)}"

    def epoch_begins(self, epoch: int) -> None:
        """Note the state as the epoch begins, of which tf-keras does not tell a sequence."""
        super().epoch_begins(epoch)
        if self._begun is None:
            self._begun = self._captured()

    def on_epoch_begin(self) -> None:
        """Call the sequence's function, as Keras 3 does."""
        self._sequence.on_epoch_begin()
        self._begun = self._captured()

    def steps_end(self) -> None:
        """Forget the state at the beginning of the epoch."""
        super().steps_end()
        self._begun = None

    def position(self, trained: int) -> dict[str, Any]:
        """Return the position with the sequence's own state, and that at the epoch's beginning."""
        found = super().position(trained)
        self.lost = [*self.lost, *self._ahead]
        if (
            self._is_whole
            and self._begun is not None
            and python_state.changed(self._begun, found[_OWN])
        ):
            found["begun"] = self._begun
        return found

    def restore(self, position: Mapping[str, Any], *, is_done: bool = False) -> None:
        """Restore the sequence's own state, reading batches again if that changes it."""
        super().restore(position, is_done=is_done)
        self._begun = position.get("begun")
        if self._begun is None:
            return
        if self._read_again is None:
            self._read_again = self._after_reading(position, self._begun)
        self._set(self._read_again)

    def _after_reading(
        self, position: Mapping[str, Any], begun: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the state after reading the epoch's batches up to a position."""
        logger.info("Reading %d batches again, as that changes the data.", position["step"])
        self._set(begun)
        for (place,) in self._stream.schedule.rows(position["epoch"], 0)[: position["step"]]:
            self._sequence[int(place)]
        changed = python_state.changed(begun, self._captured())  # callbacks change the others
        self._set(position[_OWN], changed)
        return self._captured()


def feed_of_sequence(keras: Any, arguments: dict[str, Any], seed: int) -> Feed | None:
    """Replace a sequence by a dataset; return its feed, None if the data are no sequence."""
    # A sequence that uses multiprocessing is left to Keras: its data restart with each epoch.
    data: Any = arguments.get("x")
    if not _is_sequence(keras, data):
        return None
    if getattr(data, "use_multiprocessing", False) or arguments.get("use_multiprocessing"):
        return EpochwiseSequenceFeed(keras, data)
    count = _length(data)
    if not count:
        return EpochwiseSequenceFeed(keras, data)
    shuffle = bool(arguments.get("shuffle", True))
    stream = Stream(None, Schedule(count, 1, shuffle=shuffle, seed=seed))
    is_whole = arguments.get("steps_per_epoch") in {None, count}
    feed = SequenceFeed(keras, data, stream, is_whole=is_whole)
    examples = [data[0]]
    if count > 1:
        looked = feed.position(0)
        examples.append(data[1])
        feed.note_changes(python_state.changed(looked[_OWN], feed.position(0)[_OWN]))
        if keras.__name__ == "tf_keras":
            feed.restore(looked)  # it looks at one batch only
    if not all(can_be_elements(batch) for batch in examples):
        return EpochwiseSequenceFeed(keras, data)
    elements = Elements(keras, examples)

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
    mid_epoch.call_with_epochs(
        arguments["x"], on_epoch_begin=feed.on_epoch_begin, on_epoch_end=data.on_epoch_end
    )
    return feed


def _is_sequence(keras: Any, data: Any) -> bool:
    return isinstance(data, getattr(keras.utils, "PyDataset", keras.utils.Sequence))


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
    given = arguments.get("validation_data")
    feed.validation = validation = (
        ValidationSequenceFeed(keras, given)
        if _is_sequence(keras, given)
        else feed_of_validation(arguments)
    )
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
