"""Conversion as remote work: plain values for workers on other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.data.journal import Journal, ShardOutcome, ShardPlan
from timonel.data.runners.base import ShardWriter
from timonel.data.runners.exchange import Exchange
from timonel.data.schema import Compression
from timonel.data.shards import Job
from timonel.data.sources import Source, SourceOptions, installed_sources
from timonel.storage.location import Location


class RemoteConversion:
    """A conversion, as its client sees it.

    Args:
        job: The conversion.
        exchange: Where workers find plans and put shards.
    """

    def __init__(self, job: Job, exchange: Exchange) -> None:
        self._job = job
        self._exchange = exchange

    @property
    def portable(self) -> PortableJob:
        """The conversion for its workers."""
        return PortableJob.of(self._job, self._exchange)

    def offer(self, plans: Sequence[ShardPlan]) -> None:
        """Give the plans to the workers, and forget earlier errors."""
        self._exchange.offer(self._job.journal, plans)

    def collect(self) -> None:
        """Put the shards that were finished since the last call into the journal."""
        self._exchange.collect(self._job.journal)

    def outcome(self, name: str) -> ShardOutcome:
        """Return the outcome of a shard.

        Raises:
            NotFoundError: It is not finished.
        """
        return self._job.journal.outcome(name)


@dataclass(frozen=True)
class PortableJob:
    """A conversion as plain values, from which each worker makes its own `Job`."""

    plugin: str
    location: str
    options: Mapping[str, Any]
    exchange: Exchange
    labels: Mapping[str, int]
    compression: Compression
    is_multilabel: bool

    @classmethod
    def of(cls, job: Job, exchange: Exchange) -> PortableJob:
        """Return the plain values of a conversion."""
        source = job.source
        return cls(
            plugin=source.plugin,
            location=source.location.resolved,
            options=source.options.model_dump(mode="json"),
            exchange=exchange,
            labels=dict(job.labels),
            compression=job.compression,
            is_multilabel=job.is_multilabel,
        )

    def open(self) -> ShardWriter:
        """Return a writer, whose source can read records."""
        options = SourceOptions.model_validate(self.options)
        source = installed_sources()[self.plugin](Location(self.location), options)
        source.reopen()
        return _Writer(self, source)


class _Writer(ShardWriter):
    def __init__(self, portable: PortableJob, source: Source) -> None:
        self._portable = portable
        self._source = source

    def write(self, plan: ShardPlan, tick: Callable[[int], None]) -> None:
        self._portable.exchange.write(plan, self._job, lambda: tick(1))

    def _job(self, journal: Journal) -> Job:
        job = self._portable
        return Job(self._source, journal, job.labels, job.compression, job.is_multilabel)
