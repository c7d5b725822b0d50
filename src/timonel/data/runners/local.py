"""Write shards on this machine with a pool of reader threads.

The threads read and verify records, the calling thread frames and writes them. Decoders release
the GIL, so threads use all cores. Only a few megabytes of raw records are in memory at a time, and
the output does not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from timonel.data.examples import encode_example
from timonel.data.manifest import Shard
from timonel.data.records import frame
from timonel.data.runners.plan import Outcome, Plan, ShardPlan
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE
from timonel.data.sources.base import Entry, Raw, Source, UnusableError
from timonel.storage.atomic import unwritable

_CHUNK_RECORDS = 32
_CHUNK_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20

_Read = tuple[Entry, Raw | UnusableError]


def write_shards(plan: Plan, source: Source, folder: Path, tick: Callable[[], None]) -> Outcome:
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
    plan: Plan,
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


def _encode(entry: Entry, raw: Raw, plan: Plan) -> bytes:
    label = plan.label_numbers[str(entry.label)] if plan.label_numbers else float(entry.label)
    return encode_example({**raw.features, KEY_FEATURE: entry.key, LABEL_FEATURE: label})


def _read_ahead(source: Source, entries: Iterable[Entry]) -> Generator[_Read, None, None]:
    """Yield each entry with its raw record or error, in order."""
    if not source.parallel:
        yield from ((entry, _read(source, entry)) for entry in entries)
        return
    threads = len(os.sched_getaffinity(0))
    pending: deque[Future[list[_Read]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="convert") as pool:
        try:
            for chunk in _chunks(entries):
                pending.append(pool.submit(_read_chunk, source, chunk))
                if len(pending) > 2 * threads:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _read_chunk(source: Source, entries: Sequence[Entry]) -> list[_Read]:
    return [(entry, _read(source, entry)) for entry in entries]


def _read(source: Source, entry: Entry) -> Raw | UnusableError:
    try:
        return source.read(entry)
    except UnusableError as error:
        return error


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
