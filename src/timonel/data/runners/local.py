"""Write shards in this process, with a pool of reader threads.

The threads read and verify records, the calling thread frames and writes them. Decoders release
the GIL, so threads use all cores; processes were not faster. Only a few megabytes of raw records
are in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import ClassVar

from timonel.data.runners.base import Report, Runner
from timonel.data.shards import ConversionJob, ReadRecord, ShardPlan, read_one, write_one
from timonel.data.sources.base import Entry, Source
from timonel.processes.ahead import call_ahead
from timonel.processes.cores import usable_cores

_CHUNK_RECORDS = 32
_CHUNK_BYTES = 1 << 20
_REQUESTS = 16
"""Threads for a remote source, which mostly wait for answers."""


class LocalRunner(Runner):
    """Runner in this process, on all usable cores."""

    plugin: ClassVar[str] = "local"

    def run(self, job: ConversionJob, plans: Sequence[ShardPlan], report: Report) -> None:
        """Write the shards one after the other, reading ahead in threads."""
        entries = (entry for plan in plans for entry in job.journal.entries(plan))
        with closing(_read_ahead(job.source, entries)) as records:
            for plan in plans:
                report.finished(write_one(plan, job, records, report.tick))


def _read_ahead(source: Source, entries: Iterable[Entry]) -> Generator[ReadRecord, None, None]:
    """Yield each entry with its raw record or error, in order."""
    if not source.parallel:
        yield from (read_one(source, entry) for entry in entries)
        return
    threads = max(math.ceil(usable_cores()), _REQUESTS if source.is_remote else 1)
    calls = (partial(_read_all, source, chunk) for chunk in _chunks(entries))
    with closing(call_ahead(calls, threads=threads, ahead=2 * threads, name="convert")) as found:
        for records in found:
            yield from records


def _read_all(source: Source, entries: Sequence[Entry]) -> list[ReadRecord]:
    return [read_one(source, entry) for entry in entries]


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
