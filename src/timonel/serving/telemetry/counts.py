"""Counts and histograms by key.

Adding a value takes a few microseconds, under the key's own lock.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from timonel.serving.batching.queue import BatchObservation
from timonel.serving.status import Code


def exponential(scale: float, growth: float, count: int) -> tuple[float, ...]:
    """Return ``count`` bucket limits; a bucket without a limit follows them."""
    return tuple(scale * growth**power for power in range(count))


MICROSECONDS = exponential(10, 1.8, 33)
"""TensorFlow Serving's bucket limits for latencies: from 10 us to about 25 minutes."""
ROWS = exponential(1, 2, 15)
_MICRO = 1e6

STAGES = ("decode", "queue", "compute", "encode")
"""Consecutive stages of a request, which add up to its time.

- decode: from the wire to arrays;
- queue: waiting for the model: for a thread, a place in a batch, and the transfer to and from its
  process;
- compute: inside the model; includes the queue if the model does not report its own time;
- encode: from arrays to the wire.

A failed request has only the stages it reached; its remaining time counts towards the last one.
"""

K = TypeVar("K")
V = TypeVar("V")


class RequestKey(NamedTuple):
    """Key of requests; ``version`` is None if no loaded version matched.

    A tuple, not a frozen dataclass, because one is created and hashed for each request.
    """

    entrypoint: str
    api: str
    model: str
    version: int | None
    signature: str
    code: Code


class BatchKey(NamedTuple):
    """Key of batches."""

    model: str
    version: int
    signature: str


class PathKey(NamedTuple):
    """Key of loads and warm-ups; ``path`` is the version's folder or URI."""

    model: str
    version: int
    path: str
    code: Code


class Histogram:
    """Counts of values by size. Not thread-safe: its owner has a lock.

    Args:
        bounds: The inclusive upper limits of the buckets, ascending.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add all counts of another histogram.

        Its limits must be the same, or these and more.
        """
        last = len(self.counts) - 1
        for place, count in enumerate(other.counts):
            self.counts[min(place, last)] += count
        self.total += other.total


class Requests:
    """Stage times, in microseconds, and rows of one key's requests.

    ``run`` is the wait for a batch plus the computation, which TensorFlow Serving calls the
    runtime.
    """

    __slots__ = ("lock", "rows", "run", "stages", "whole")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.whole = Histogram(MICROSECONDS)
        self.stages = tuple(Histogram(MICROSECONDS) for _ in range(4))
        self.run = Histogram(MICROSECONDS)
        self.rows = Histogram(ROWS)

    def observe(
        self, seconds: float, stages: tuple[float, float, float, float], run_s: float, rows: int
    ) -> None:
        """Count a request; times are in seconds."""
        with self.lock:
            self.whole.observe(seconds * _MICRO)
            self.run.observe(run_s * _MICRO)
            for histogram, stage in zip(self.stages, stages, strict=True):
                histogram.observe(stage * _MICRO)
            if rows:
                self.rows.observe(rows)


class BatchCounts:
    """Batches of one key: rows, times, and padding by the padded batch size."""

    __slots__ = ("compute", "lock", "padded", "queue", "rows")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows = Histogram(ROWS)
        self.padded: dict[int, Histogram] = {}
        self.queue = Histogram(MICROSECONDS)
        self.compute = Histogram(MICROSECONDS)

    def observe(self, batch: BatchObservation) -> None:
        """Count a batch."""
        with self.lock:
            self.rows.observe(batch.rows)
            size = batch.rows + batch.padded_rows
            padded = self.padded.get(size) or self.padded.setdefault(size, Histogram(ROWS))
            padded.observe(batch.padded_rows)
            self.compute.observe(batch.compute_s * _MICRO)
            for waited in batch.queue_s:
                self.queue.observe(waited * _MICRO)


class Times:
    """Loads or warm-ups of one key: microseconds, and records read."""

    __slots__ = ("lock", "records", "took")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.took = Histogram(MICROSECONDS)
        self.records = 0

    def observe(self, seconds: float, records: int = 0) -> None:
        """Count a load or warm-up."""
        with self.lock:
            self.took.observe(seconds * _MICRO)
            self.records += records


class Table(dict[K, V]):
    """Values by key, created on first use. Thread-safe.

    Lookups of existing keys take no lock.
    """

    def __init__(self, make: Callable[[], V]) -> None:
        super().__init__()
        self._make = make
        self._lock = threading.Lock()

    def __missing__(self, key: K) -> V:
        with self._lock:
            return self.setdefault(key, self._make())

    def snapshot(self) -> dict[K, V]:
        """Return the current items."""
        with self._lock:
            return dict(self)


class Concurrency(NamedTuple):
    """Concurrency of requests at one moment.

    Args:
        request_s: Its integral over time since the start of the server, in request-seconds.
    """

    in_flight: int = 0
    request_s: float = 0.0


@dataclass(frozen=True)
class ServerCounts:
    """All counts. They keep changing while they are read, without a lock.

    Args:
        logged: Requests sampled for the log, by model and result: ``OK``, ``RESOURCE_EXHAUSTED``
            (dropped because the queue or the disk was full) or ``INTERNAL``.
        memory: Memory in bytes by kind of process.
        cpu_s: CPU time in seconds by kind of process.
    """

    requests: Mapping[RequestKey, Requests] = field(default_factory=dict)
    batches: Mapping[BatchKey, BatchCounts] = field(default_factory=dict)
    loads: Mapping[PathKey, Times] = field(default_factory=dict)
    warmups: Mapping[PathKey, Times] = field(default_factory=dict)
    logged: Mapping[tuple[str, str], int] = field(default_factory=dict)
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    concurrency: Concurrency = field(default_factory=Concurrency)
    queued: int = 0
