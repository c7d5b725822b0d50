"""Conversion as remote work: plain values for workers on other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.data.runners.base import ShardWriter
from timonel.data.runners.worker_wheel import CONVERSION
from timonel.data.schema import Compression
from timonel.data.shards import ConversionJob, ConversionJournal, ShardPlan, write_one
from timonel.data.sources import Source, SourceOptions, installed_sources
from timonel.storage.location import Location


@dataclass(frozen=True)
class PortableJob:
    """A conversion as plain values, from which each worker makes its own `ConversionJob`."""

    plugin: str
    location: str
    options: Mapping[str, Any]
    labels: Mapping[str, int]
    compression: Compression
    is_multilabel: bool

    @classmethod
    def of(cls, job: ConversionJob) -> PortableJob:
        """Return the plain values of a conversion."""
        source = job.source
        return cls(
            plugin=source.plugin,
            location=source.location.resolved,
            options=source.options.model_dump(mode="json"),
            labels=dict(job.labels),
            compression=job.compression,
            is_multilabel=job.is_multilabel,
        )

    def journal(self, root: Path) -> ConversionJournal:
        """Return the journal in a folder."""
        return ConversionJournal(root)

    @property
    def packages(self) -> Sequence[str]:
        """Packages that writers of shards import."""
        return CONVERSION

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

    def write(
        self, plan: ShardPlan, journal: ConversionJournal, tick: Callable[[int], None]
    ) -> None:
        of = self._portable
        job = ConversionJob(self._source, journal, of.labels, of.compression, of.is_multilabel)
        write_one(plan, job, tick=lambda: tick(1))
