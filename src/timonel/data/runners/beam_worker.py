"""Write shards in workers of Apache Beam."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.utils.shared import Shared

from timonel.data.journal import Journal, ShardPlan
from timonel.data.runners.lease import LeaseLostError, LeaseWatch
from timonel.data.schema import Compression, Split
from timonel.data.shards import Job, write_one
from timonel.data.sources import SourceOptions, installed_sources
from timonel.errors import TimonelError
from timonel.storage.atomic import write_json
from timonel.storage.location import Location

LEASE = "client"
ERROR = "error.json"
NAMESPACE = "timonel"

Element = tuple[str, Split, int]
"""Name, split and number of records of a shard."""


@dataclass(frozen=True)
class PortableJob:
    """A conversion as plain values, from which each worker makes its own `Job`."""

    plugin: str
    location: str
    options: Mapping[str, Any]
    folder: str
    labels: Mapping[str, int]
    compression: Compression

    @classmethod
    def of(cls, job: Job) -> PortableJob:
        """Return the plain values of a conversion."""
        source = job.source
        return cls(
            plugin=source.plugin,
            location=source.location.resolved,
            options=source.options.model_dump(mode="json"),
            folder=str(job.journal.root.resolve()),
            labels=dict(job.labels),
            compression=job.compression,
        )

    def open(self) -> Job:
        """Return the conversion, with a source that can read records."""
        options = SourceOptions.model_validate(self.options)
        source = installed_sources()[self.plugin](Location(self.location), options)
        source.reopen()
        return Job(source, Journal(Path(self.folder)), self.labels, self.compression)


class WriteShard(beam.DoFn):  # type: ignore[misc] # Beam has no types
    """Write the shards of a conversion, except those that are finished."""

    def __init__(self, job: PortableJob) -> None:
        self._portable = job
        self._shared = Shared()
        self._records = beam.metrics.Metrics.counter(NAMESPACE, "records")

    def setup(self) -> None:
        """Open the conversion, once per process: a table is in its memory."""
        self._job = self._shared.acquire(self._portable.open)

    def process(self, element: Element) -> Iterator[str]:
        """Write one shard; yield its name.

        Raises:
            TimonelError: It cannot be written; the message is in the conversion's folder too.
        """
        journal = self._job.journal
        lease = LeaseWatch(journal.root / LEASE)

        def tick() -> None:
            self._records.inc()
            lease.check()

        plan = ShardPlan(*element)
        try:
            lease.check()
            # Beam repeats a bundle after the loss of a worker.
            if not journal.is_finished(plan):
                write_one(plan, self._job, tick=tick)
        except LeaseLostError:
            raise
        except TimonelError as error:
            body = {"message": error.message, "hint": error.hint}
            write_json(journal.root / ERROR, body)
            raise
        yield plan.name
