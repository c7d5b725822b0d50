"""Plan shards, and write one shard.

`write_one` is a function of a plan and a job. It may run in any process that sees the folder, more
than once, and at the same time elsewhere: the result is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from timonel.data.examples import encode_example
from timonel.data.journal import Journal, ShardOutcome, ShardPlan
from timonel.data.manifest import Shard, Skipped
from timonel.data.records import frame
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE, SPLITS, Split
from timonel.data.sources.base import Entry, Raw, Source, UnusableError
from timonel.data.sources.transient import retried, unreadable
from timonel.data.statistics import Collector
from timonel.errors import SpecError
from timonel.storage.atomic import aside_name, sync, unwritable

_BUFFER_BYTES = 1 << 20
_END = struct.Struct("<Q")

ReadRecord = tuple[Entry, Raw | UnusableError]
"""Entry with its raw record, or with what is wrong with it."""


@dataclass(frozen=True)
class Job:
    """What a runner needs to write the shards of one conversion.

    Args:
        source: The source.
        journal: The folder of the conversion.
        labels: Number of each class; empty for a regression, whose labels are numbers.
    """

    source: Source
    journal: Journal
    labels: Mapping[str, int]


def plan_shards(
    counts: Mapping[Split, int],
    sizes: Mapping[Split, int],
    *,
    shard_bytes: int,
    shards: int | None = None,
) -> list[ShardPlan]:
    """Cut each split into shards with nearly equal numbers of records.

    Args:
        counts: Records of each split.
        sizes: Bytes of each split.
        shard_bytes: Approximate maximum size of a shard.
        shards: Number of shards of the training split, instead of ``shard_bytes``; other splits
            get shards of about the same number of records.

    Raises:
        SpecError: ``shard_bytes`` or ``shards`` is not positive.
    """
    for number, what in ((shards, "shards"), (shard_bytes, "bytes per shard")):
        if number is not None and number < 1:
            raise SpecError(f"the number of {what} must be positive, got {number}")
    result: list[ShardPlan] = []
    for split in SPLITS:
        count = counts[split]
        if not count:
            continue
        total = -(-sizes[split] // shard_bytes)
        if shards is not None:
            total = round(shards * count / counts["train"])
        total = max(1, min(total, count))
        cuts = [count * index // total for index in range(total + 1)]
        result.extend(
            ShardPlan(f"{split}-{index:05d}-of-{total:05d}.tfrecord", split, end - start)
            for index, (start, end) in enumerate(itertools.pairwise(cuts))
        )
    return result


def fill(
    plans: Sequence[ShardPlan], entries: Iterator[Entry]
) -> Iterator[tuple[ShardPlan, Iterable[Entry]]]:
    """Yield each plan with its entries, from all entries in order."""
    for plan in plans:
        yield plan, itertools.islice(entries, plan.records)


def read_one(source: Source, entry: Entry) -> ReadRecord:
    """Read one record, again after transient errors.

    Raises:
        InputError: The record cannot be read now.
    """
    try:
        return entry, retried(lambda: source.read(entry))
    except UnusableError as error:
        return entry, error
    except OSError as error:
        raise unreadable(entry.key, error) from error


def write_one(
    plan: ShardPlan,
    job: Job,
    records: Iterable[ReadRecord] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> ShardOutcome:
    """Write one shard and record its outcome in the journal.

    Args:
        plan: The shard.
        job: The conversion.
        records: The shard's records, read in the order of the plan; by default read here.
        tick: Called after each record.

    Raises:
        InputError: The folder cannot be written, or a record cannot be read now.
    """
    if records is None:
        records = (read_one(job.source, entry) for entry in job.journal.entries(plan))
    path = job.journal.content / plan.name
    shard = _OpenShard(plan, job)
    aside = path.with_name(aside_name(path.name))
    try:
        with aside.open("wb", buffering=_BUFFER_BYTES) as file:
            for entry, raw in itertools.islice(records, plan.records):
                file.write(shard.encode(entry, raw))
                tick()
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return shard.finish()


class _OpenShard:
    """Framed records, digest, statistics and index of a shard that is being written."""

    def __init__(self, plan: ShardPlan, job: Job) -> None:
        self._plan = plan
        self._job = job
        self._sha = hashlib.sha256()
        self._bytes = 0
        self._raw_bytes = 0
        self._ends = bytearray()
        self._files: list[tuple[str, str]] = []
        self._collector = Collector()
        self._rejected: list[Skipped] = []

    def encode(self, entry: Entry, raw: Raw | UnusableError) -> bytes:
        """Return the framed record; nothing for an unusable one."""
        if isinstance(raw, UnusableError):
            self._rejected.append(Skipped(key=raw.key, reason=raw.reason))
            return b""
        labels = self._job.labels
        label = labels[str(entry.label)] if labels else float(entry.label)
        example = encode_example({**raw.features, KEY_FEATURE: entry.key, LABEL_FEATURE: label})
        framed = b"".join(frame(example))
        self._sha.update(framed)
        self._bytes += len(framed)
        self._ends += _END.pack(self._bytes)
        self._collector.add(
            str(entry.label) if labels else float(entry.label), raw.features, raw.image
        )
        if raw.image is not None:
            self._raw_bytes += raw.image.bytes
            line = f"{raw.image.digest} {raw.image.bytes} {entry.key}"
            self._files.append((entry.key, line))
        return framed

    def finish(self) -> ShardOutcome:
        """Record the outcome in the journal and return it."""
        statistics = self._collector.statistics()
        outcome = ShardOutcome(
            shard=Shard(
                name=self._plan.name,
                split=self._plan.split,
                records=statistics.records,
                bytes=self._bytes,
                digest=f"sha256:{self._sha.hexdigest()}",
            ),
            statistics=statistics,
            rejected=tuple(self._rejected),
            raw_bytes=self._raw_bytes,
        )
        self._job.journal.save(outcome, bytes(self._ends), self._files)
        return outcome
