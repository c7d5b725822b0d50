"""Limits that several processes keep together: buckets and counts in memory that they share.

A cell is read and written under a lock of the kernel's, which lets go when its holder dies, so
that a process that is killed leaves nothing locked. That costs microseconds, and only where there
are limits.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator

from timonel.serving.access.limits import Bucket, Rate, take

_CELL = struct.Struct("<Qdd")
_WAYS = 8
_SETS = 4096
_COUNT = struct.Struct("<q")
_MOST_WORKERS = 256
_COUNTS_BYTES = _COUNT.size * _MOST_WORKERS


class SharedMemory:
    """A piece of memory that all workers map; made by their leader.

    Args:
        descriptor: A file of `make`'s; owned by this object.
        worker: Which of the workers this process is.
    """

    def __init__(self, descriptor: int, worker: int) -> None:
        self.descriptor = descriptor
        self.worker = worker
        self.map = mmap.mmap(descriptor, 0)

    @classmethod
    def make(cls) -> SharedMemory:
        """Return new memory, with every bucket full and nothing under way."""
        descriptor = os.memfd_create("timonel limits", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _COUNTS_BYTES + 2 * _SETS * _WAYS * _CELL.size)
        return cls(descriptor, 0)

    def forget(self, worker: int) -> None:
        """Count nothing any more for a worker that has died."""
        with self.locked(0):
            _COUNT.pack_into(self.map, worker * _COUNT.size, 0)

    @contextlib.contextmanager
    def locked(self, place: int) -> Iterator[None]:
        """Keep other processes from a place during the block."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX, 1, place)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, place)


class SharedThrottle:
    """A bucket for each name, for all workers together; see `limits.Throttle`.

    The names come from clients, so only the ones used last are kept.

    Args:
        rate: How each bucket fills up; none lets everything through.
        memory: Where the buckets are.
        table: Which of the two tables there.
    """

    def __init__(self, rate: Rate | None, memory: SharedMemory, table: int) -> None:
        self._rate = rate
        self._memory = memory
        self._start = _COUNTS_BYTES + table * _SETS * _WAYS * _CELL.size

    def take(self, name: str, now: float) -> float:
        """Take a token for ``name``; return the seconds to wait, 0 if it was granted."""
        if self._rate is None:
            return 0.0
        # Not `hash`, which differs from process to process. 0 is an empty cell.
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        key = int.from_bytes(digest, "little") or 1
        place = self._start + key % _SETS * _WAYS * _CELL.size
        with self._memory.locked(place):
            at, bucket = self._find(place, key)
            bucket, wait_s = take(self._rate, bucket, now)
            _CELL.pack_into(self._memory.map, at, key, bucket.tokens, bucket.at)
        return wait_s

    def _find(self, place: int, key: int) -> tuple[int, Bucket | None]:
        """Return the cell of a name, and what is in it; else the one that was used longest ago."""
        oldest, oldest_at = place, float("inf")
        for way in range(_WAYS):
            at = place + way * _CELL.size
            found, tokens, used = _CELL.unpack_from(self._memory.map, at)
            if found == key:
                return at, Bucket(tokens, used)
            if used < oldest_at:
                oldest, oldest_at = at, used
        return oldest, None


class SharedSlots:
    """How many requests are under way in all workers together; see `limits.Slots`.

    Args:
        most: The limit; none for no limit.
        memory: Where each worker has its count.
    """

    def __init__(self, most: int | None, memory: SharedMemory) -> None:
        self._most = most
        self._memory = memory
        self._at = memory.worker * _COUNT.size

    def take(self) -> bool:
        """Take a slot if there is one; whoever gets it must `give` it back."""
        if self._most is None:
            return True
        with self._memory.locked(0):
            counts = memoryview(self._memory.map)[:_COUNTS_BYTES].cast("q")
            try:
                if sum(counts) >= self._most:
                    return False
                counts[self._memory.worker] += 1
            finally:
                counts.release()
        return True

    def give(self) -> None:
        """Give a slot back."""
        if self._most is None:
            return
        with self._memory.locked(0):
            (count,) = _COUNT.unpack_from(self._memory.map, self._at)
            _COUNT.pack_into(self._memory.map, self._at, max(0, count - 1))
