"""Python generator as training data, replayed from its beginning.

Batches that were read ahead but not trained on are kept, so that none is lost when an iterator is
dropped.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from timonel.training.worker.state.data_position import Feed
from timonel.training.worker.state.elements import Elements, can_be_elements

logger = logging.getLogger(__name__)

_LOOKED_AT = 2
_PREFETCHED = 2


class GeneratorFeed(Feed):
    """Position in a generator. As thread-safe as the generator.

    Args:
        generator: Yields the same batches each time the script starts.
    """

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
        logger.info("the generator is read again for %d batches", trained)
        while not self._is_over and self._first < trained:
            with self._lock:
                self._read_to(self._first + 1)
            self.step_begins(self._first + 1)
        self.step_begins(trained)
        return trained

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
    """Replace a generator by a dataset and return its feed.

    None if the data are no generator.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    data: Any = arguments.get("x")
    if not hasattr(data, "__next__") or not hasattr(data, "__iter__"):
        return None
    feed = GeneratorFeed(data)
    examples = feed.look()
    if not examples or not all(can_be_elements(batch) for batch in examples):
        arguments["x"] = feed.batches()
        return Feed()
    elements = Elements(keras, examples)
    flat = tuple(tf.TensorSpec(s, d) for s, d in zip(elements.shapes, elements.dtypes, strict=True))
    dataset = tf.data.Dataset.from_generator(
        lambda: map(elements.flat, feed.batches()), output_signature=flat
    )
    arguments["x"] = dataset.map(lambda *leaves: elements.packed(leaves)).prefetch(_PREFETCHED)
    arguments["shuffle"] = False
    return feed
