"""Statistics of a source's records, as a conversion collects them."""

from __future__ import annotations

from collections.abc import Iterable

from timonel.data.sources import Entry, Source
from timonel.data.statistics import Collector, Statistics


def statistics_of(source: Source, entries: Iterable[Entry]) -> Statistics:
    collector = Collector()
    for entry in entries:
        raw = source.read(entry)
        collector.add(entry.label, raw.features, raw.image, raw.facts)
    return collector.statistics()
