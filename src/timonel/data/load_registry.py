"""Record of the datasets this process has loaded, and its input shard.

The training runtime configures the shard before the user's program calls ``load``, and reads
afterwards what was loaded and how it was preprocessed. Does not import TensorFlow.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from timonel.arguments import checked
from timonel.data.preprocessing import Preprocessing
from timonel.data.schedule import Indices, InputShard, Schedule
from timonel.data.schema import Split, Task
from timonel.errors import DataError, InputError

__all__ = [
    "InputShard",
    "LabelMode",
    "LoadRecord",
    "Stream",
    "configure",
    "faults",
    "input_shard",
    "is_sharded",
    "loads",
    "on_load",
    "reset",
    "stream_of",
    "streams",
]

LabelMode = Literal["int", "onehot", "multihot", "binary", "regression"]


@dataclass(frozen=True)
class LoadRecord:
    """Record of one ``load`` call and its preprocessing.

    A global batch and an epoch are of all workers together, steps those of every worker. A
    regression has no labels, a table no image size; ``name`` is which of several ``--data
    NAME=URI``.
    """

    uri: str
    digest: str
    split: Split
    batch_size: int
    records: int
    steps: int
    preprocessing: Preprocessing
    task: Task
    labels: tuple[str, ...]
    label_mode: LabelMode
    image_size: tuple[int, int] | None
    shuffle: bool
    seed: int
    shard: InputShard
    name: str | None = None


class Stream:
    """Position in one loaded dataset: epoch and step to read next.

    Without `seek`, iterators yield epochs 0, 1, 2, ... from the first step. Thread-safe.
    """

    def __init__(self, record: LoadRecord | None, schedule: Schedule) -> None:
        self._record = record
        self.schedule = schedule
        self.listener: Callable[[int, int], None] = lambda *_: None
        """Called by each new iterator with its first epoch and step."""
        self._lock = threading.Lock()
        self._epoch = 0
        self._step = 0

    @property
    def record(self) -> LoadRecord:
        """Record of the load; streams over data from other sources have none."""
        assert self._record is not None
        return self._record

    @property
    def epoch(self) -> int:
        """Epoch of the next iterator."""
        return self._epoch

    @checked()
    def seek(self, epoch: int, step: int = 0) -> None:
        """Start the next iterator at ``epoch`` and ``step``; later ones follow."""
        steps = self.schedule.steps
        if epoch < 0 or not 0 <= step <= steps:
            raise InputError(
                f"cannot seek to step {step} of epoch {epoch}: an epoch has {steps:,} steps",
                hint="count epochs and steps from 0",
            )
        with self._lock:
            self._epoch, self._step = epoch, step

    def begin(self) -> Indices:
        """Return the rows of the next epoch and advance.

        Called by each new iterator.
        """
        with self._lock:
            epoch, step = self._epoch, self._step
            self._epoch, self._step = epoch + 1, 0
        self.listener(epoch, step)
        return np.ascontiguousarray(self.schedule.rows(epoch, step))


loads: list[LoadRecord] = []
"""Every load of this process, in order."""

streams: list[Stream] = []
"""Streams of these loads, in the same order."""

on_load: list[Callable[[LoadRecord], None]] = []
"""Callbacks for each new record."""

faults: list[DataError] = []
"""Errors from reading records inside TensorFlow, which passes on their text only."""

_shard = InputShard()
_by_dataset: weakref.WeakKeyDictionary[Any, Stream] = weakref.WeakKeyDictionary()


def configure(shard: InputShard) -> None:
    """Set the input shard of later loads in this process."""
    global _shard  # noqa: PLW0603 - one process trains in one cluster
    _shard = shard


def input_shard() -> InputShard:
    """Return the input shard of loads in this process."""
    return _shard


def reset() -> None:
    """Forget all loads and callbacks, and reset the input shard."""
    configure(InputShard())
    loads.clear()
    streams.clear()
    on_load.clear()
    faults.clear()
    _by_dataset.clear()


def register(dataset: Any, stream: Stream) -> None:
    """Record a dataset that ``load`` is about to return."""
    _by_dataset[dataset] = stream
    streams.append(stream)
    loads.append(stream.record)
    for callback in on_load:
        callback(stream.record)


def stream_of(dataset: Any) -> Stream | None:
    """Return the stream of a dataset that ``load`` itself returned."""
    return _by_dataset.get(dataset)


def is_sharded(dataset: Any) -> bool:
    """Tell whether a tf.data.Dataset yields one worker's part only.

    ``load`` turns TensorFlow's auto-sharding off when it shards. This checks that option, because
    it is kept through the user's ``map``, ``cache`` and ``prefetch``. If the user turned
    auto-sharding off, the dataset counts as sharded too.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return getattr(policy, "name", None) == "OFF"
