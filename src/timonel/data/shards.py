"""Plan shards, and write one shard.

`write_one` is a function of a plan and a job. It may run in any process that sees the folder, more
than once, and at the same time elsewhere: the result is the same.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from timonel.data.examples import Feature, encode_example
from timonel.data.journal import Journal, ShardOutcome, ShardPlan
from timonel.data.manifest import Rejected, Shard
from timonel.data.records import compress, frame
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE, SPLITS, Compression, Split, labels_of
from timonel.data.sources.base import Entry, Raw, Source, UnusableError
from timonel.data.sources.reencode import reencoded
from timonel.data.sources.transient import retried, unreadable
from timonel.data.statistics import Collector, ImageFacts
from timonel.errors import SpecError
from timonel.storage.atomic import replacing

_MEMBER_BYTES = 1 << 16
"""A reader of one record decompresses a whole gzip member of this size."""

ReadRecord = tuple[Entry, Raw | UnusableError]
"""Entry with its raw record, or with what is wrong with it."""


@dataclass(frozen=True)
class Job:
    """What a runner needs to write the shards of one conversion.

    Args:
        source: The source.
        journal: The folder of the conversion.
        labels: Number of each class; empty for a regression, whose labels are numbers.
        compression: Compression of the shards.
        is_multilabel: Records have several labels.
    """

    source: Source
    journal: Journal
    labels: Mapping[str, int]
    compression: Compression = "none"
    is_multilabel: bool = False


def plan_shards(
    counts: Mapping[Split, int],
    sizes: Mapping[Split, int],
    *,
    shard_bytes: int,
    shards: int | None = None,
    compression: Compression = "none",
) -> list[ShardPlan]:
    """Cut each split into shards with nearly equal numbers of records.

    Args:
        counts: Records of each split.
        sizes: Bytes of each split.
        shard_bytes: Approximate maximum size of a shard.
        shards: Number of shards of the training split, instead of ``shard_bytes``; other splits
            get shards of about the same number of records.
        compression: Compression of the shards, for their names.

    Raises:
        SpecError: ``shard_bytes`` or ``shards`` is not positive.
    """
    for number, what in ((shards, "shards"), (shard_bytes, "bytes per shard")):
        if number is not None and number < 1:
            raise SpecError(f"the number of {what} must be positive, got {number}")
    result: list[ShardPlan] = []
    ending = "tfrecord.gz" if compression == "gzip" else "tfrecord"
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
            ShardPlan(f"{split}-{index:05d}-of-{total:05d}.{ending}", split, end - start)
            for index, (start, end) in enumerate(itertools.pairwise(cuts))
        )
    return result


def read_one(source: Source, entry: Entry) -> ReadRecord:
    """Read one record, again after transient errors.

    Raises:
        InputError: The record cannot be read now.
    """
    try:
        return entry, reencoded(retried(lambda: source.read(entry)), source.options)
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
    with replacing(path) as file:
        for entry, raw in itertools.islice(records, plan.records):
            file.write(shard.add(entry, raw))
            tick()
        file.write(shard.rest())
    return shard.finish()


class _OpenShard:
    """Framed records, digest, statistics and index of a shard that is being written."""

    def __init__(self, plan: ShardPlan, job: Job) -> None:
        self._plan = plan
        self._job = job
        self._sha = hashlib.sha256()
        self._bytes = 0
        self._raw_bytes = 0
        self._index: list[int] = []
        self._member = bytearray()
        self._files: list[tuple[str, str]] = []
        self._collector = Collector()
        self._rejected: list[Rejected] = []

    def add(self, entry: Entry, raw: Raw | UnusableError) -> bytes:
        """Add a record; return the bytes to write next."""
        if isinstance(raw, UnusableError):
            self._rejected.append(raw.rejected)
            return b""
        labels = self._job.labels
        found: str | float | list[str]
        label: Feature
        if self._job.is_multilabel:
            found = labels_of(str(entry.label))
            label = [labels[name] for name in found]
        elif labels:
            found = str(entry.label)
            label = labels[found]
        else:
            found = label = float(entry.label)
        example = encode_example({**raw.features, KEY_FEATURE: entry.key, LABEL_FEATURE: label})
        framed = b"".join(frame(example))
        self._collector.add(found, raw.features, raw.image, raw.facts)
        if raw.image is not None:
            self._add_file(entry.key, raw.image)
        for name, facts in raw.facts.items():
            for number, image in enumerate(facts.images):
                self._add_file(f"{entry.key} {name} {number}", image)
        if self._job.compression == "none":
            self._index.append(self._bytes + len(framed))
            return self._count(framed)
        self._member += framed
        self._index += [self._bytes, len(self._member)]
        return self.rest() if len(self._member) >= _MEMBER_BYTES else b""

    def _add_file(self, key: str, image: ImageFacts) -> None:
        self._raw_bytes += image.bytes
        self._files.append((key, f"{image.digest} {image.bytes} {key}"))

    def rest(self) -> bytes:
        """Return the bytes to write after all records."""
        if not self._member:
            return b""
        member, self._member = bytes(self._member), bytearray()
        return self._count(compress(member))

    def _count(self, content: bytes) -> bytes:
        self._sha.update(content)
        self._bytes += len(content)
        return content

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
            files=tuple(self._files),
            raw_bytes=self._raw_bytes,
            index=tuple(self._index),
        )
        self._job.journal.save(outcome)
        return outcome
