"""Plan the shards of a conversion, and write one shard.

`write_one` is a function of a plan and a job. It may run in any process that sees the folder, more
than once, and at the same time elsewhere: the result is the same.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from timonel.data.examples import Feature, encode_example
from timonel.data.journal import Journal, Outcome
from timonel.data.manifest import Rejected, Shard
from timonel.data.records import compress, frame
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE, SPLITS, Compression, Split, labels_of
from timonel.data.sources.base import Entry, Raw, Source, UnusableError
from timonel.data.sources.reencode import reencoded
from timonel.data.sources.transient import retried, unreadable
from timonel.data.statistics import Collector, ImageFacts, Statistics
from timonel.errors import SpecError
from timonel.storage.atomic import replacing, unwritable

_MEMBER_BYTES = 1 << 16
"""A reader of one record decompresses a whole gzip member of this size."""

ReadRecord = tuple[Entry, Raw | UnusableError]
"""Entry with its raw record, or with what is wrong with it."""


@dataclass(frozen=True)
class ShardPlan:
    """One shard to write, by its file name, and the number of records to read for it."""

    name: str
    split: Split
    records: int


class ShardOutcome(Outcome):
    """Result of writing one shard of a dataset."""

    split: Split
    bytes: int
    statistics: Statistics
    files: tuple[tuple[str, str], ...] = Field(
        default=(), description="Key of each raw file, and its line in the digest of all files."
    )
    raw_bytes: int = Field(default=0, description="Total size of the raw files.")
    rotated: int = Field(default=0, description="Number of images with an EXIF orientation.")
    first_rotated: str = Field(default="", description="The key of the first one.")
    index: tuple[int, ...] = Field(description="Part of the index, see `timonel.data.index`.")

    @property
    def shard(self) -> Shard:
        """The shard as the manifest lists it."""
        return Shard(
            name=self.name,
            split=self.split,
            records=self.records,
            bytes=self.bytes,
            digest=self.digest,
        )


class ConversionJournal(Journal[ShardOutcome]):
    """Journal of a conversion; its plans have one record per line, as JSON arrays."""

    work: ClassVar[str] = "convert"
    _outcome_type = ShardOutcome

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.database = root / "records.db"
        self.rejected = root / "rejected.jsonl"

    def is_worth_keeping(self) -> bool:
        """Return whether shards are finished, or unusable records listed."""
        return super().is_worth_keeping() or self.rejected.exists()

    def write_plan(self, plans: Iterable[ShardPlan], entries: Iterator[Entry]) -> str:
        """Write the records of each shard, taken from all entries; return their digest."""
        folder = self.plan_file("")
        shutil.rmtree(folder, ignore_errors=True)
        sha = hashlib.sha256()
        try:
            folder.mkdir()
            for plan in plans:
                sha.update(f"{plan.name}\n".encode())
                with self.plan_file(plan.name).open("wb") as file:
                    for entry in itertools.islice(entries, plan.records):
                        line = _line(entry)
                        sha.update(line)
                        file.write(line)
        except OSError as error:
            raise unwritable(folder, error) from error
        return sha.hexdigest()

    def entries(self, plan: ShardPlan) -> Iterator[Entry]:
        """Yield the records of a shard, in order."""
        with self.plan_file(plan.name).open("rb") as file:
            for line in file:
                key, label, size, ref, modified = json.loads(line)
                yield Entry(key, label, size, ref, plan.split, modified=modified)


def _line(entry: Entry) -> bytes:
    fields = [entry.key, entry.label, entry.size, entry.ref, entry.modified]
    return json.dumps(fields).encode() + b"\n"


def plan_digest(records: str, settings: dict[str, Any]) -> str:
    """Return the digest of a plan: of its records and of all that determines the shards' bytes."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(f"{records}\n{text}".encode()).hexdigest()


@dataclass(frozen=True)
class ConversionJob:
    """What a runner needs to write the shards of one conversion.

    A regression has numbers as labels, and so no numbers of classes.
    """

    source: Source
    journal: ConversionJournal
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

    ``shard_bytes`` is an approximate maximum, ``shards`` the number for the training split instead;
    other splits get shards of about the same number of records.
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
    """Read one record, again after transient errors."""
    found = _read_once(source, entry)
    if isinstance(found[1], UnusableError) and source.is_remote:
        # A server may have cut off what it sent: a record is rejected if it is unusable twice.
        return _read_once(source, entry)
    return found


def _read_once(source: Source, entry: Entry) -> ReadRecord:
    try:
        return entry, reencoded(retried(lambda: source.read(entry)), source.options)
    except UnusableError as error:
        return entry, error
    except OSError as error:
        raise unreadable(entry.key, error) from error


def write_one(
    plan: ShardPlan,
    job: ConversionJob,
    records: Iterable[ReadRecord] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> ShardOutcome:
    """Write one shard and record its outcome in the journal.

    The records, read in the order of the plan, are by default read here.
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

    def __init__(self, plan: ShardPlan, job: ConversionJob) -> None:
        self._plan = plan
        self._job = job
        self._sha = hashlib.sha256()
        self._bytes = 0
        self._raw_bytes = 0
        self._index: list[int] = []
        self._member = bytearray()
        self._files: list[tuple[str, str]] = []
        self._rotated: list[str] = []
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
        if image.orientation != 1:
            self._rotated.append(key)
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
            name=self._plan.name,
            digest=f"sha256:{self._sha.hexdigest()}",
            records=statistics.records,
            split=self._plan.split,
            bytes=self._bytes,
            statistics=statistics,
            rejected=tuple(self._rejected),
            files=tuple(self._files),
            raw_bytes=self._raw_bytes,
            rotated=len(self._rotated),
            first_rotated=self._rotated[0] if self._rotated else "",
            index=tuple(self._index),
        )
        self._job.journal.save(outcome)
        return outcome
