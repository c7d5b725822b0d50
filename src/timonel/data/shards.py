"""Cut splits into shards and write them with a pool of reader threads.

The threads read and verify records, the calling thread frames and writes them. Decoders release
the GIL, so threads use all cores. Only a few megabytes of raw records are in memory at a time, and
the output does not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.data.examples import encode_example
from timonel.data.manifest import Shard
from timonel.data.records import frame
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE, SPLITS, Split
from timonel.data.sources.base import Entry, Raw, Source, UnusableError
from timonel.errors import SpecError
from timonel.storage.atomic import unwritable

_CHUNK_RECORDS = 32
_CHUNK_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ShardPlan:
    """File name and records of one shard to write, in order."""

    name: str
    split: Split
    entries: Sequence[Entry]


@dataclass(frozen=True)
class ConversionPlan:
    """All shards to write.

    Args:
        shards: The shards, in the order of writing.
        label_numbers: Number of each class; empty for a regression, whose labels are numbers.
        skip_bad: Skip unusable records instead of failing.
    """

    shards: Sequence[ShardPlan]
    label_numbers: Mapping[str, int]
    skip_bad: bool = False

    @property
    def records(self) -> int:
        """Number of records of all shards."""
        return sum(len(shard.entries) for shard in self.shards)


@dataclass
class Outcome:
    """Result of writing a plan.

    Args:
        shards: The written files, in the order of the plan.
        facts: The source's facts about each record, by key.
        written: Written records by split, in order.
        skipped: Unusable records: key and reason.
    """

    shards: list[Shard] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    written: dict[Split, list[Entry]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    skipped: list[tuple[str, str]] = field(default_factory=list)


def plan_shards(
    splits: Mapping[Split, Sequence[Entry]], *, shard_bytes: int, shards: int | None = None
) -> list[ShardPlan]:
    """Cut each split into shards with nearly equal numbers of records.

    Args:
        splits: Records of each split, in order.
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
    for split, entries in splits.items():
        if not entries:
            continue
        if shards is None:
            total = -(-sum(entry.size for entry in entries) // shard_bytes)
        else:
            total = round(shards * len(entries) / len(splits["train"]))
        total = max(1, min(total, len(entries)))
        cuts = [len(entries) * index // total for index in range(total + 1)]
        result.extend(
            ShardPlan(f"{split}-{index:05d}-of-{total:05d}.tfrecord", split, entries[start:end])
            for index, (start, end) in enumerate(itertools.pairwise(cuts))
        )
    return result


_Read = tuple[Entry, Raw | UnusableError]


def write_shards(
    plan: ConversionPlan, source: Source, folder: Path, tick: Callable[[], None]
) -> Outcome:
    """Read every record of ``plan`` once and write the shards into ``folder``.

    Args:
        plan: The shards to write.
        source: The source of the records.
        folder: An empty folder.
        tick: Called after each record.

    Raises:
        UnusableError: A record cannot be used and ``plan.skip_bad`` is false.
        InputError: The folder cannot be written.
    """
    outcome = Outcome()
    records = _read_ahead(source, (entry for shard in plan.shards for entry in shard.entries))
    try:
        for shard in plan.shards:
            outcome.shards.append(_write_shard(shard, plan, records, folder, outcome, tick))
    finally:
        records.close()
    return outcome


def _write_shard(
    shard: ShardPlan,
    plan: ConversionPlan,
    records: Iterator[_Read],
    folder: Path,
    outcome: Outcome,
    tick: Callable[[], None],
) -> Shard:
    path = folder / shard.name
    sha, size, written = hashlib.sha256(), 0, outcome.written[shard.split]
    before = len(written)
    try:
        with path.open("wb", buffering=_BUFFER_BYTES) as file:
            for _ in shard.entries:
                entry, raw = next(records)
                if isinstance(raw, UnusableError):
                    if not plan.skip_bad:
                        raise raw
                    outcome.skipped.append((raw.key, raw.reason))
                else:
                    framed = b"".join(frame(_encode(entry, raw, plan)))
                    sha.update(framed)
                    size += file.write(framed)
                    outcome.facts[entry.key] = raw.facts
                    written.append(entry)
                tick()
    except OSError as error:
        raise unwritable(path, error) from error
    return Shard(
        name=shard.name,
        split=shard.split,
        records=len(written) - before,
        bytes=size,
        digest=f"sha256:{sha.hexdigest()}",
    )


def _encode(entry: Entry, raw: Raw, plan: ConversionPlan) -> bytes:
    label = plan.label_numbers[str(entry.label)] if plan.label_numbers else float(entry.label)
    return encode_example({**raw.features, KEY_FEATURE: entry.key, LABEL_FEATURE: label})


def _read_ahead(source: Source, entries: Iterable[Entry]) -> Generator[_Read, None, None]:
    """Yield each entry with its raw record or error, in order."""

    def read(entry: Entry) -> _Read:
        try:
            return entry, source.read(entry)
        except UnusableError as error:
            return entry, error

    if not source.parallel:
        yield from map(read, entries)
        return
    threads = len(os.sched_getaffinity(0))
    pending: deque[Future[list[_Read]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="convert") as pool:
        try:
            for chunk in _chunks(entries):
                pending.append(pool.submit(lambda part: [*map(read, part)], chunk))
                if len(pending) > 2 * threads:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        chunk.append(entry)
        size += entry.size
        if len(chunk) == _CHUNK_RECORDS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
