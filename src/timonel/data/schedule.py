"""Deterministic schedule of the records each worker reads, as pure functions.

The order of an epoch depends on (seed, epoch) alone and is the same on every worker, machine and
NumPy release. Step ``s`` of ``n`` workers takes the same records as step ``s`` of one worker with
the same batch size, so a run can stop at any step and resume there with more or fewer workers.

    n records, B rows per global batch, T replicas of all workers

    one replica     ceil(n / B) steps, the last one may be smaller
    training        floor(n / B) steps of exactly B rows; the records left over differ by epoch
    evaluation      ceil(n / B) steps, each record once, each replica with at least one row

With ``last_batch="drop"`` all batches have B rows; with ``"pad"`` those of evaluation have the same
width, and padding in place of missing rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from timonel.errors import InputError

LastBatch = Literal["short", "pad", "drop"]
Indices = npt.NDArray[np.int64]
ABSENT = -1
"""Padding of steps that have fewer rows than the widest one."""


@dataclass(frozen=True)
class InputShard:
    """This process's part of every global batch, which each worker divides among its replicas.

    ``per_replica``: requested batch sizes are per replica instead of global.
    """

    index: int = 0
    count: int = 1
    replicas: int = 1
    per_replica: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.index < self.count and self.replicas >= 1):
            raise InputError(f"invalid input shard: {self}")

    @property
    def total(self) -> int:
        """Number of replicas of all workers."""
        return self.count * self.replicas

    def global_batch(self, size: int) -> int:
        """Return the global batch size for a requested ``size``."""
        return size * self.total if self.per_replica else size


@dataclass(frozen=True)
class Schedule:
    """Records that a worker reads at each step, of a split and its global batches.

    With ``shuffle``, for training, and several replicas all batches have exactly ``batch`` rows;
    without it, for evaluation, every record is read exactly once.
    """

    records: int
    batch: int
    shard: InputShard = InputShard()
    shuffle: bool = False
    seed: int = 0
    last_batch: LastBatch = "short"

    def __post_init__(self) -> None:
        total = self.shard.total
        if self.batch < 1:
            raise InputError(f"the batch size must be positive, got {self.batch}")
        if self.batch % total:
            raise InputError(
                f"the batch size {self.batch} cannot be divided among {total} replicas",
                hint=f"use a multiple of {total}",
            )
        if self.records < total:
            raise InputError(
                f"{self.records} records are too few for {total} replicas",
                hint="use fewer workers, or convert with other --splits",
            )
        _ = self._sizes

    @property
    def steps(self) -> int:
        """Number of batches of an epoch, the same on every worker."""
        return len(self._sizes)

    @cached_property
    def width(self) -> int:
        """Rows of this worker's widest batch, with padding."""
        if self.last_batch == "pad":
            return max(self.batch // self.shard.count, int(self._sizes.max()))
        return int(self._sizes[:, self.shard.index].max())

    def order(self, epoch: int) -> Indices:
        """Return the global record order [n] of an epoch."""
        if not self.shuffle:
            return np.arange(self.records, dtype=np.int64)
        return permutation(self.records, self.seed, epoch)

    def rows(self, epoch: int, step: int = 0) -> Indices:
        """Return this worker's records [steps - step, width], starting at ``step``.

        Batches narrower than the widest one are padded with `ABSENT`.
        """
        sizes = self._sizes
        ends = np.cumsum(sizes.ravel()).reshape(sizes.shape)[step:, self.shard.index]
        starts = ends - sizes[step:, self.shard.index]
        places = starts[:, None] + np.arange(self.width)
        present = places < ends[:, None]
        order = self.order(epoch)
        return np.where(present, order[np.where(present, places, 0)], ABSENT)

    @cached_property
    def _sizes(self) -> Indices:
        """Rows of each step on each worker [steps, workers]."""
        if self.last_batch == "drop":
            return self._training_sizes()
        if self.shard.total == 1:
            full, rest = divmod(self.records, self.batch)
            return np.array([self.batch] * full + [rest] * (rest > 0), np.int64)[:, None]
        if self.shuffle:
            return self._training_sizes()
        return self._evaluation_sizes()

    def _training_sizes(self) -> Indices:
        # A split smaller than one batch is one batch, rounded down to a multiple of the replicas.
        rows = min(self.batch, self.records // self.shard.total * self.shard.total)
        steps = self.records // rows
        return np.full((steps, self.shard.count), rows // self.shard.count, np.int64)

    def _evaluation_sizes(self) -> Indices:
        # Each batch gets a multiple of ``replicas`` rows. The remainder goes to the last batch,
        # which a strategy splits into parts of ceil(rows / replicas): with fewer than ``least``
        # units the last replica would get no rows.
        workers, replicas = self.shard.count, self.shard.replicas
        units, rest = divmod(self.records, replicas)
        least = replicas - rest if rest else 1
        steps = min(-(-self.records // self.batch), units // workers)
        while steps and units - max(units // (steps * workers), least) < steps * workers - 1:
            steps -= 1
        if not steps or units < least:
            raise InputError(
                f"{self.records} records are too few for {self.shard.total} replicas",
                hint="use fewer devices, or convert with other --splits",
            )
        cells = steps * workers
        last = max(units // cells, least)
        others, more = divmod(units - last, max(1, cells - 1))
        sizes = np.full(cells, others, np.int64)
        sizes[:more] += 1
        sizes[-1] = last
        sizes *= replicas
        sizes[-1] += rest
        return sizes.reshape(steps, workers)


def permutation(count: int, seed: int, epoch: int) -> Indices:
    """Return a permutation of ``range(count)`` determined by (seed, epoch)."""
    key = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    mixed = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.frombuffer(key, "<u8")
    # SplitMix64's finaliser, because NumPy does not promise stable random streams.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.argsort(mixed, kind="stable").astype(np.int64)
