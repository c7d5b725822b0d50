"""Write shards in workers of Apache Beam."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.utils.shared import Shared

from timonel._version import __version__
from timonel.data.journal import Journal, ShardPlan
from timonel.data.runners.exchange import Exchange
from timonel.data.runners.lease import LeaseLostError, LeaseWatch
from timonel.data.schema import Compression, Split
from timonel.data.shards import Job
from timonel.data.sources import Source, SourceOptions, installed_sources
from timonel.errors import InputError, TimonelError
from timonel.storage.location import Location

NAMESPACE = "timonel"

Element = tuple[str, Split, int]
"""Name, split and number of records of a shard."""


@dataclass(frozen=True)
class PortableJob:
    """A conversion as plain values, from which each worker makes its own `Job`."""

    plugin: str
    location: str
    options: Mapping[str, Any]
    exchange: Exchange
    labels: Mapping[str, int]
    compression: Compression
    release: str = __version__

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
        )

    def open(self) -> Source:
        """Return the source, which can read records.

        Raises:
            InputError: The worker has another release, which may write other bytes.
        """
        if self.release != __version__:
            raise InputError(
                f"a worker of Apache Beam has timonel {__version__} instead of {self.release}",
                hint="install the same release on all workers",
            )
        options = SourceOptions.model_validate(self.options)
        source = installed_sources()[self.plugin](Location(self.location), options)
        source.reopen()
        return source


class WriteShard(beam.DoFn):  # type: ignore[misc] # Beam has no types
    """Write the shards of a conversion, except those that are finished."""

    def __init__(self, job: PortableJob) -> None:
        self._portable = job
        self._shared = Shared()
        self._records = beam.metrics.Metrics.counter(NAMESPACE, "records")

    def setup(self) -> None:
        """Open the source, once per process: a table is in its memory."""
        try:
            self._source: Source = self._shared.acquire(self._portable.open)
        except TimonelError as error:
            self._portable.exchange.report(error)
            raise

    def process(self, element: Element) -> Iterator[str]:
        """Write one shard; yield its name.

        Raises:
            TimonelError: It cannot be written; the message is in the conversion's folder too.
        """
        exchange = self._portable.exchange
        lease = LeaseWatch(exchange)

        def tick() -> None:
            self._records.inc()
            lease.check()

        def job(journal: Journal) -> Job:
            return Job(self._source, journal, self._portable.labels, self._portable.compression)

        plan = ShardPlan(*element)
        try:
            lease.check()
            # Beam repeats a bundle after the loss of a worker; the shard may be finished.
            exchange.write(plan, job, tick)
        except LeaseLostError:
            raise
        except TimonelError as error:
            exchange.report(error)
            raise
        yield plan.name
