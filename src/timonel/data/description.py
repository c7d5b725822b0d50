"""Describe a finished dataset: merge the outcomes of its shards into a manifest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from timonel._version import __version__
from timonel.data.assignment import SplitAssignment
from timonel.data.catalogue import NAMED, Catalogue, Identical
from timonel.data.index import write_index
from timonel.data.journal import Journal, ShardPlan
from timonel.data.manifest import (
    Manifest,
    Shard,
    Skipped,
    SourceInfo,
    Target,
    content_digest,
    write_manifest,
)
from timonel.data.rejected import REJECTED_NAME, Rejected, write_rejected
from timonel.data.schema import SPLITS, Compression, Split
from timonel.data.sources.base import Description, RawFiles, Scan, Source
from timonel.data.statistics import NumberStatistics, Statistics
from timonel.errors import DataError
from timonel.storage.atomic import unwritable


@dataclass(frozen=True)
class Planned:
    """What is known of a dataset before its shards are written."""

    source: Source
    scan: Scan
    labels: Sequence[str]
    shards: Sequence[ShardPlan]
    assignment: SplitAssignment
    identical: Identical
    seed: int
    compression: Compression


@dataclass(frozen=True)
class _Results:
    shards: list[Shard]
    statistics: dict[Split, Statistics]
    rejected: int
    raw_bytes: int


def finish(
    planned: Planned, journal: Journal, catalogue: Catalogue, run_id: str
) -> tuple[Manifest, Description]:
    """Write index, rejected records and manifest beside the finished shards.

    Raises:
        DataError: The training split lacks usable records of a label.
        InputError: The folder cannot be written.
    """
    results = _merge(planned.shards, journal)
    _check(planned, results)
    names = [plan.name for plan in planned.shards]
    records = sum(found.records for found in results.statistics.values())
    files = RawFiles(catalogue.digest_files(journal.files(names)), records, results.raw_bytes)
    facts = planned.source.describe(results.statistics, files)
    try:
        index = write_index(journal.content, (journal.ends(name) for name in names))
        rejected = None
        if planned.scan.rejected or results.rejected:
            path = journal.content / REJECTED_NAME
            rejected = write_rejected(path, all_rejected(planned.scan, names, journal))
    except OSError as error:
        raise unwritable(journal.content, error) from error
    content: dict[str, Any] = {
        "task": planned.scan.task,
        "schema": facts.schema.model_dump(mode="json"),
        "labels": list(planned.labels),
        "shards": [shard.model_dump(mode="json") for shard in results.shards],
    }
    digest = content_digest(content)
    manifest = Manifest(
        id=f"dataset-{digest.removeprefix('sha256:')[:12]}",
        digest=digest,
        task=planned.scan.task,
        record_schema=facts.schema,
        labels=tuple(planned.labels),
        target=_target(results.statistics["train"].target),
        counts={split: found.records for split, found in results.statistics.items()},
        label_counts=_label_counts(results.statistics, planned.labels),
        shards=tuple(results.shards),
        compression=planned.compression,
        index=index,
        rejected=rejected,
        statistics={split: found.summary() for split, found in results.statistics.items()},
        columns=tuple(planned.scan.columns),
        source=_source(planned, results, journal, facts),
        seed=planned.seed,
        fractions=planned.assignment.fractions,
        given_splits=planned.assignment.given,
        timonel_version=__version__,
        run_id=run_id,
    )
    _remove_strays(journal, manifest)
    write_manifest(journal.content, manifest)
    return manifest, facts


def all_rejected(scan: Scan, names: Iterable[str], journal: Journal) -> Iterator[Rejected]:
    """Yield the unusable records of a scan and of finished shards."""
    yield from scan.rejected
    for name in names:
        for each in journal.outcome(name).rejected:
            yield each.key, each.reason


def _merge(plans: Sequence[ShardPlan], journal: Journal) -> _Results:
    shards, rejected, raw_bytes = [], 0, 0
    statistics: dict[Split, Statistics] = {split: Statistics() for split in SPLITS}
    for plan in plans:
        outcome = journal.outcome(plan.name)
        shards.append(outcome.shard)
        statistics[plan.split].merge(outcome.statistics)
        rejected += len(outcome.rejected)
        raw_bytes += outcome.raw_bytes
    return _Results(shards, statistics, rejected, raw_bytes)


def _check(planned: Planned, results: _Results) -> None:
    train = results.statistics["train"]
    lost = [label for label in planned.labels if not train.labels[label]]
    if lost or not train.records:
        what = f"no usable record of {lost[0]!r}" if lost else "no usable record"
        raise DataError(
            f"{what} in the training split: {results.rejected} records were rejected",
            hint="repair the rejected records or add others",
        )


def _source(
    planned: Planned, results: _Results, journal: Journal, facts: Description
) -> SourceInfo:
    scan, left_out = planned.scan, planned.assignment.left_out
    rejected = len(scan.rejected) + results.rejected
    skipped = itertools.chain(
        left_out, all_rejected(scan, (plan.name for plan in planned.shards), journal)
    )
    return SourceInfo(
        plugin=planned.source.plugin,
        uri=str(planned.source.location),
        digest=facts.digest,
        files=facts.files,
        bytes=facts.bytes,
        ignored=tuple(scan.ignored[:NAMED]),
        ignored_count=len(scan.ignored),
        skipped=tuple(
            Skipped(key=key, reason=reason) for key, reason in itertools.islice(skipped, NAMED)
        ),
        skipped_count=len(left_out) + rejected,
        rejected_count=rejected,
        duplicates=planned.identical.first,
        duplicate_count=planned.identical.count,
        contradiction_count=planned.identical.contradictions,
        notes=tuple(scan.notes),
        warnings=(*scan.warnings, *planned.assignment.warnings),
    )


def _label_counts(
    statistics: dict[Split, Statistics], labels: Sequence[str]
) -> dict[Split, dict[str, int]]:
    if not labels:
        return {}
    return {s: {label: found.labels[label] for label in labels} for s, found in statistics.items()}


def _target(numbers: NumberStatistics | None) -> Target | None:
    if numbers is None:
        return None
    return Target.model_validate(numbers.summary().model_dump())


def _remove_strays(journal: Journal, manifest: Manifest) -> None:
    """Remove files of writers that were killed, or that wrote a shard for a second time."""
    known = {file.name for file in manifest.files}
    for path in [path for path in journal.content.iterdir() if path.name not in known]:
        path.unlink(missing_ok=True)
