"""``tf.data`` pipeline as training data, replayed up to its position.

A shuffle without a fixed order draws a seed for each pass over the data. So the feed counts passes,
draws as many seeds again, and skips the completed steps of the interrupted pass. Passes are counted
inside the pipeline, at their first element: Keras creates iterators that it never reads. Those draw
a seed, too, and are counted apart.

A pass need not be read to draw its seed, unless a ``repeat`` or ``cache`` is in the pipeline. Where
training and validation share one, their passes are gone through in their common order.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.training.worker.inputs.fit_data import is_dataset
from timonel.training.worker.private import tf_data
from timonel.training.worker.state.data_position import Feed

logger = logging.getLogger(__name__)

_PREFETCHED = 1
_READ_AHEAD: weakref.WeakSet[Any] = weakref.WeakSet()
"""Repeated pipelines of earlier calls, which may have begun another pass before they ended."""


class ReplayFeed(Feed):
    """Position in a pipeline."""

    can_seek = True

    def __init__(
        self,
        dataset: Any,
        *,
        keeps_pass: bool,
        wraps: bool,
        is_sized: bool = True,
        looks_ahead: bool = False,
    ) -> None:
        self._is_sized = is_sized
        self._inner = dataset
        self._memory = memory = tf_data.memory_of(dataset)
        self._keeps_pass = keeps_pass
        self._passes = 0
        self._unread = 0
        self._skip = 0
        self._pass: tuple[int, int, int] | None = None
        self._until = 0
        self._order: list[ReplayFeed] | None = None  # of passes, read ones, with another feed
        self._leader: ReplayFeed | None = None
        keeps_state = memory.shuffles or memory.streams or memory.must_be_read
        self._counts = wraps or bool(keeps_state)
        can_draw = not keeps_pass and not memory.must_be_read
        # Keras 3 begins another pass after each epoch, which it never reads.
        self._after_epoch = int(looks_ahead and can_draw and bool(tf_data.size_of(dataset)))
        self._begins_epoch = True
        self.dataset = self._wrapped() if self._counts else dataset
        self.note = "the tf.data pipeline is gone through again, in its own order"
        if self._memory.has_random_functions:
            self.note += (
                "; it draws random numbers inside map(), whose state cannot be saved: after a "
                "restart these are others (use stateless operations, or a seed from the data)"
            )
        if keeps_pass and self._memory.must_be_read:
            if dataset in _READ_AHEAD:
                self.lost = ["the order of a repeated pipeline that calls of fit share"]
            _READ_AHEAD.add(dataset)

    def share_order(self, validation: ReplayFeed, *, is_whole: bool) -> None:
        """Go through the passes of both in their order, as they change one state.

        Args:
            is_whole: Whether all passes are read to their end.
        """
        memories = (self._memory, validation._memory)
        if not any(memory.must_be_read for memory in memories):
            return  # what counts is the number of passes
        if not tf_data.share_state(self._inner, validation._inner):
            return
        if self._keeps_pass or not is_whole or tf_data.is_endless(validation._inner):
            self.lost = [*self.lost, "the order of a pipeline that training and validation share"]
            return
        self._order = validation._order = []
        validation._leader = self

    def epoch_begins(self, epoch: int) -> None:
        """Note whether an uncounted pass may begin with this epoch."""
        del epoch
        self._begins_epoch = not self._keeps_pass or self._pass is None

    def step_begins(self, trained: int) -> None:
        """Count later reads as training."""
        super().step_begins(trained)
        if self._begins_epoch and not self._counts:
            # No state is kept between passes: they need no numbers.
            self._pass = 1, 0, trained
        self._begins_epoch = False

    def steps_end(self) -> None:
        """Count later reads as validation."""
        if self._armed is not None and self._counts and self._after_epoch:
            iter(self._inner)
            self._unread += 1
        super().steps_end()

    def position(self, trained: int) -> dict[str, Any]:
        """Return number and step of the current pass, and how many unread ones came before."""
        found = self._position(trained)
        if self._memory.has_random_functions and found["step"]:
            self.lost = [*{*self.lost, "random numbers that functions of map() draw in an epoch"}]
        order = "".join("t" if each is self else "v" for each in self._order or ())
        return {**found, "order": order}

    def _position(self, trained: int) -> dict[str, int]:
        if self._pass is not None:
            number, unread, begun = self._pass
            return {"pass": number, "unread": unread, "step": trained - begun}
        if self._keeps_pass:
            return {"pass": self._passes + 1, "unread": 0, "step": self._skip}
        return {"pass": self._passes, "unread": self._unread, "step": 0}

    def seek(self, position: Mapping[str, Any], trained: int, *, within: bool) -> int:
        """Draw earlier passes' seeds, and resume at the saved step."""
        del trained
        if not position:
            return 0
        step, further = position["step"], 0
        size = tf_data.size_of(self._inner)
        if not within and not self._keeps_pass:
            step, further = 0, 1
        elif size and step >= size:
            step, further = step % size, step // size
        unread = position["unread"] + further * self._after_epoch
        # Keras may have read a batch ahead in this process too, as in the one before.
        self._go_through(position["pass"] - 1 + further, unread, position["order"])
        self._skip = step
        return int(step)

    def seek_end(self, position: Mapping[str, Any]) -> None:
        """Draw the seeds of all passes of a finished call."""
        self._go_through(
            position["pass"], position["unread"] + self._after_epoch, position["order"]
        )

    def _go_through(self, until: int, unread: int, order: str) -> None:
        """Make as many passes as had been made, read and unread ones."""
        begun, self._until = time.monotonic(), until
        if self._leader is not None:
            return  # which goes through both
        if self._order is not None:
            self._go_through_both(self._order, order)
        passes, others = until - self._passes, unread - self._unread
        # An endless pass was never left: Keras has only read the first of its elements.
        endless = tf_data.is_endless(self._inner)
        if self._memory.must_be_read:
            for _ in range(passes):
                for _ in self._inner.take(1) if endless else self._inner:
                    pass
        else:
            for _ in range(passes + others):
                iter(self._inner)
            for stream in self._memory.streams:
                stream.seek(stream.epoch + passes)
        self._passes, self._unread = until, unread
        took_s = time.monotonic() - begun
        if took_s > 1:
            logger.info("%d passes over the data were gone through in %.1f s", passes, took_s)

    def _go_through_both(self, done: list[ReplayFeed], order: str) -> None:
        feeds = {"t": self, "v": self.validation}
        for feed in (feeds[letter] for letter in order):
            if isinstance(feed, ReplayFeed) and feed._passes < feed._until:
                for _ in feed._inner:
                    pass
                feed._passes += 1
                done.append(feed)

    def _wrapped(self) -> Any:
        def begin(_: Any) -> Any:
            skipped = tf.numpy_function(self._begin, [], tf.int64)
            skipped.set_shape(())
            return skipped

        inner = self._inner
        found = tf.data.Dataset.from_tensors(0).map(begin).flat_map(inner.skip)
        size = tf_data.size_of(inner)
        if size is not None and self._is_sized:
            # Keras asks for the size. After a skip there are fewer elements, and it reads no more.
            found = found.apply(tf.data.experimental.assert_cardinality(size))
        return found.prefetch(_PREFETCHED).with_options(inner.options())

    def _begin(self) -> Any:
        self._passes += 1
        if self._order is not None:
            self._order.append(self)
        skipped, self._skip = self._skip, 0
        if self._armed is not None:
            self._pass = self._passes, self._unread, self._armed - skipped
        return np.int64(skipped)


def feed_of_pipeline(keras: Any, arguments: dict[str, Any], *, resumes: bool) -> Feed:
    """Replace a pipeline by one that counts passes, and return its feed."""
    feed = ReplayFeed(
        arguments["x"],
        keeps_pass=bool(arguments.get("steps_per_epoch")),
        wraps=resumes,
        looks_ahead=keras.__name__ == "keras",
    )
    arguments["x"] = feed.dataset
    return feed


def feed_of_validation(arguments: dict[str, Any]) -> Feed | None:
    """Replace validation data that are shuffled by a pipeline that counts passes."""
    data = arguments.get("validation_data")
    if not is_dataset(data):
        return None
    memory = tf_data.memory_of(data)
    if memory.streams or not memory.shuffles:
        return None
    feed = ReplayFeed(data, keeps_pass=False, wraps=True)
    arguments["validation_data"] = feed.dataset
    return feed
