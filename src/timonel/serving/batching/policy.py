"""Batching policies: adaptive, and TensorFlow Serving's parameters.

The adaptive policy learns the best batch size of each signature from measured compute times. Larger
batches pay off while the time per row decreases. The limit is the smallest power of two whose time
per row is, within a tolerance, the lowest measured. It grows by exploration: while the largest
measured size is the best one, larger batches are allowed.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from timonel.serving.batching.merge import rows_of
from timonel.serving.batching.queue import (
    ALONE,
    Key,
    NaturalQueue,
    ParameterQueue,
    Queue,
    QueueLimits,
)
from timonel.serving.batching.tfserving_parameters import check_queue, unsigned
from timonel.serving.settings.batching import BatchingParameters
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code, StatusError

_BUCKETS = 21
_TOLERANCE = 1.1
_GROWTH = 2
_MIN_MEASUREMENTS = 3
"""Measurements before a size counts: the first ones allocate memory and warm caches."""
_EXPLORE = 64
_FASTER, _SLOWER = 0.5, 0.1
"""Weights of faster and slower measurements: noise only makes runs slower."""


class BatchTimes(NamedTuple):
    """Measured compute times of a signature's batches; a tuple for speed.

    Args:
        row_s: Seconds per row, by size: entry k is for batches of more than 2^(k-1) and at most 2^k
            rows.
        counts: Number of measurements, by size.
    """

    row_s: tuple[float, ...] = (0.0,) * _BUCKETS
    counts: tuple[int, ...] = (0,) * _BUCKETS
    seen: int = 0

    def updated(self, rows: int, seconds: float) -> BatchTimes:
        """Return the times after another batch took ``seconds`` to compute."""
        if rows < 1:
            return self
        k = _bucket(rows)
        measured = seconds / rows
        before = self.row_s[k] if self.counts[k] else measured
        after = before + (measured - before) * (_FASTER if measured < before else _SLOWER)
        return BatchTimes(
            (*self.row_s[:k], after, *self.row_s[k + 1 :]),
            (*self.counts[:k], self.counts[k] + 1, *self.counts[k + 1 :]),
            self.seen + 1,
        )

    def best_size(self, max_rows: int) -> int:
        """Return the maximum rows of the next batch, from 1 to ``max_rows``."""
        known = [k for k, count in enumerate(self.counts) if count >= _MIN_MEASUREMENTS]
        if not known:
            # Start small: otherwise small sizes are never tried, and never found to be cheap.
            return 1
        cheapest = min(self.row_s[k] for k in known)
        best = next(k for k in known if self.row_s[k] <= _TOLERANCE * cheapest)
        if best == known[-1]:
            best += _GROWTH
        elif self.seen % _EXPLORE == 0:
            # Retry sizes that were slow once, as the cause may be temporary.
            best += 1
        elif self.seen % _EXPLORE == _EXPLORE // 2:
            best = max(best - 1, 0)
        return min(1 << best, max_rows)


_NO_TIMES = BatchTimes()


def _bucket(rows: int) -> int:
    return min((rows - 1).bit_length(), _BUCKETS - 1)


class BatchingPolicy(abc.ABC):
    """Batching decisions for one version. Thread-safe."""

    max_queued: int | None = None
    """Limit of queued requests, other than that of each queue."""
    allowed_sizes: Sequence[int] = ()
    pad_shapes = False
    retries_alone = False
    """Whether to retry the requests of a failed batch one by one."""
    checks_outputs = False
    """Whether to check the number of output rows for single requests too."""
    late: StatusError
    """Error of requests whose deadline passed in the queue."""

    @property
    def independent(self) -> frozenset[str]:
        """Signatures whose rows are known to be independent."""
        return frozenset()

    @abc.abstractmethod
    def place(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[int, Key]:
        """Return a request's rows and the key of its queue; `ALONE` to compute it alone."""

    @abc.abstractmethod
    def queue(self, key: Key) -> Queue:
        """Return an empty queue."""

    def computed(self, signature: str, rows: int, seconds: float) -> None:  # noqa: B027
        """Record the compute time of a batch."""

    def misfit(self, signature: str) -> None:  # noqa: B027
        """Record that a batch's outputs do not match its rows."""


class AdaptivePolicy(BatchingPolicy):
    """Natural batches of a learned size, for signatures whose rows are independent.

    Args:
        batched: Names of the signatures to batch; requests to others are computed alone.
    """

    retries_alone = True
    late = StatusError(Code.DEADLINE_EXCEEDED, "Deadline exceeded while waiting in the queue")

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        batched: Collection[str] = (),
        max_rows: int = 1,
        max_queued: int | None = None,
    ) -> None:
        self.max_queued = max_queued
        self._signatures = signatures
        self._max_rows = max_rows
        self._times = dict.fromkeys(batched, _NO_TIMES)

    @property
    def independent(self) -> frozenset[str]:
        """Signatures that are batched."""
        return frozenset(self._times)

    def place(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[int, Key]:
        """Return a key for the same shapes; `ALONE` if the request is to be computed alone."""
        if signature not in self._times:
            return 1, ALONE
        try:
            rows = rows_of(inputs)
        except StatusError:
            # If the request is invalid, the model reports the error.
            return 1, ALONE
        specs = self._signatures[signature].inputs
        # The evidence is for inputs of the declared rank.
        if rows == 0 or any(a.ndim != len(specs[n].shape or ()) for n, a in inputs.items()):
            return 1, ALONE
        shapes = tuple((array.dtype, array.shape[1:]) for array in inputs.values())
        return rows, (signature, tuple(sorted(outputs)), tuple(inputs), shapes)

    def queue(self, key: Key) -> Queue:
        """Return a queue without added delay."""
        if key == ALONE:
            return NaturalQueue()
        return NaturalQueue(lambda: self._times.get(key[0], _NO_TIMES).best_size(self._max_rows))

    def computed(self, signature: str, rows: int, seconds: float) -> None:
        """Record the compute time of a batch."""
        # Races between threads may lose an update, which is acceptable for a statistic.
        times = self._times.get(signature)
        if times is not None:
            self._times[signature] = times.updated(rows, seconds)

    def misfit(self, signature: str) -> None:
        """Batch no more requests of this signature."""
        self._times.pop(signature, None)


class ParameterPolicy(BatchingPolicy):
    """Batching by TensorFlow Serving's parameters: every request is queued."""

    checks_outputs = True
    late = StatusError(
        Code.RESOURCE_EXHAUSTED, "Run() timeout exceeded while waiting in batching queue"
    )

    def __init__(self, parameters: BatchingParameters) -> None:
        check_queue(parameters)
        self.allowed_sizes = parameters.allowed_batch_sizes
        self.pad_shapes = parameters.pad_variable_length_inputs
        largest = unsigned(parameters.max_batch_size)
        split = parameters.enable_large_batch_splitting
        self._limits = QueueLimits(
            request_rows=largest,
            batch_rows=(parameters.max_execution_batch_size or largest) if split else largest,
            timeout_s=parameters.batch_timeout_micros / 1e6,
            batches=unsigned(parameters.max_enqueued_batches) or 1,
            split=split,
        )

    def place(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[int, Key]:
        """Return the key of the signature and outputs, whatever the shapes."""
        return rows_of(inputs), (signature, tuple(sorted(outputs)))

    def queue(self, key: Key) -> Queue:  # noqa: ARG002
        """Return a queue with the parameters' limits."""
        return ParameterQueue(self._limits)
