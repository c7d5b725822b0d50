"""What this process has loaded, and which part of it falls to this worker.

Whoever runs the training tells the shard before the user's program calls ``load`` and reads
afterwards what was loaded and how it was transformed. Imports no TensorFlow.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from timonel.data.preprocessing import Preprocessing
from timonel.data.schedule import Indices, InputShard, Schedule
from timonel.data.schema import Split, Task
from timonel.errors import DataError

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

LabelMode = Literal["int", "onehot", "binary", "regression"]


@dataclass(frozen=True)
class LoadRecord:
    """One call of ``load``: what, and what was done to it.

    Args:
        batch_size: Rows of a global batch.
        records: Records of the split, of all workers together.
        steps: Batches of an epoch, on every worker.
        labels: Names of the classes, by number; empty for a regression.
        image_size: Height and width; None for a table.
        name: Which of several ``--data NAME=URI``.
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
    """The position of one loaded dataset: which epoch its next iterator yields, from which step.

    Without `seek` iterators yield epoch 0, 1, 2, ... from their start. Thread-safe.
    """

    def __init__(self, record: LoadRecord | None, schedule: Schedule) -> None:
        self._record = record
        self.schedule = schedule
        self.listener: Callable[[int, int], None] = lambda *_: None
        """Told by each new iterator with which epoch and step it begins."""
        self._lock = threading.Lock()
        self._epoch = 0
        self._step = 0

    @property
    def record(self) -> LoadRecord:
        """What was loaded; a stream over other data than ``load``'s has none."""
        assert self._record is not None
        return self._record

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator yields."""
        return self._epoch

    def seek(self, epoch: int, step: int = 0) -> None:
        """Let the next iterator yield ``epoch`` from ``step`` onwards; later ones follow."""
        with self._lock:
            self._epoch, self._step = epoch, step

    def begin(self) -> Indices:
        """Return the rows of the epoch that begins now; called by each new iterator."""
        with self._lock:
            epoch, step = self._epoch, self._step
            self._epoch, self._step = epoch + 1, 0
        self.listener(epoch, step)
        return np.ascontiguousarray(self.schedule.rows(epoch, step))


loads: list[LoadRecord] = []
"""Every load of this process, in order."""

streams: list[Stream] = []
"""The streams of these loads, in the same order."""

on_load: list[Callable[[LoadRecord], None]] = []
"""Called with each new record."""

faults: list[DataError] = []
"""What reading records has raised inside TensorFlow, which passes on no more than the text."""

_shard = InputShard()
_by_dataset: weakref.WeakKeyDictionary[Any, Stream] = weakref.WeakKeyDictionary()


def configure(shard: InputShard) -> None:
    """Set the part that later loads of this process take."""
    global _shard  # noqa: PLW0603 - one process trains in one cluster
    _shard = shard


def input_shard() -> InputShard:
    """Return the part that loads of this process take."""
    return _shard


def reset() -> None:
    """Forget all loads and callbacks, and take whole datasets again."""
    configure(InputShard())
    loads.clear()
    streams.clear()
    on_load.clear()
    faults.clear()
    _by_dataset.clear()


def register(dataset: Any, stream: Stream) -> None:
    """Note what ``load`` is about to return."""
    _by_dataset[dataset] = stream
    streams.append(stream)
    loads.append(stream.record)
    for callback in on_load:
        callback(stream.record)


def stream_of(dataset: Any) -> Stream | None:
    """Return the stream of a dataset that ``load`` returned, not of one derived from it."""
    return _by_dataset.get(dataset)


def is_sharded(dataset: Any) -> bool:
    """Tell whether a tf.data.Dataset yields one worker's part already.

    ``load`` turns TensorFlow's auto-sharding off if it shards. That option travels with the
    dataset through the user's ``map``, ``cache`` and ``prefetch``, so it is what is looked at. A
    user who has set it himself has said the same.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return getattr(policy, "name", None) == "OFF"
