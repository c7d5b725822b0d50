"""Conversion as plain values, for workers on other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.data.journal import Journal, ShardOutcome, ShardPlan
from timonel.data.runners.base import ShardWriter
from timonel.data.schema import Compression
from timonel.data.shards import Job, write_one
from timonel.data.sources import SourceOptions, installed_sources
from timonel.storage.location import Location


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

    def open(self) -> ShardWriter:
        """Return a writer, whose source can read records."""
        options = SourceOptions.model_validate(self.options)
        source = installed_sources()[self.plugin](Location(self.location), options)
        source.reopen()
        return _Writer(Job(source, Journal(Path(self.folder)), self.labels, self.compression))

    def outcome(self, name: str) -> ShardOutcome:
        """Return the outcome of a shard.

        Raises:
            NotFoundError: It is not finished.
        """
        return Journal(Path(self.folder)).outcome(name)


class _Writer(ShardWriter):
    def __init__(self, job: Job) -> None:
        self._job = job

    def write(self, plan: ShardPlan, tick: Callable[[int], None]) -> None:
        if not self._job.journal.is_finished(plan):
            write_one(plan, self._job, tick=lambda: tick(1))
