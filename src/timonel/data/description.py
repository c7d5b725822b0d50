"""Describe a finished dataset: merge the outcomes of its shards into a manifest."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from timonel._version import __version__
from timonel.data.assignment import SplitAssignment
from timonel.data.catalogue import NAMED, IdenticalGroups, RecordCatalogue
from timonel.data.index import write_index
from timonel.data.manifest import (
    Manifest,
    Rejected,
    Shard,
    SourceInfo,
    Target,
    content_digest,
    write_manifest,
)
from timonel.data.rejected import REJECTED_NAME, write_rejected
from timonel.data.schema import SPLITS, CategoricalColumn, Compression, Split, TableSchema
from timonel.data.shards import ConversionJournal, ShardPlan
from timonel.data.sources.base import Description, RawFiles, Scan, Source
from timonel.data.sources.columns import parse_number
from timonel.data.statistics import Statistics
from timonel.errors import DataError
from timonel.storage.atomic import unwritable
from timonel.storage.uris import without_credentials
from timonel.units import counted


@dataclass(frozen=True)
class Planned:
    """What is known of a dataset before its shards are written."""

    source: Source
    scan: Scan
    labels: Sequence[str]
    shards: Sequence[ShardPlan]
    assignment: SplitAssignment
    identical: IdenticalGroups
    seed: int
    compression: Compression


@dataclass
class _Results:
    """What the shards have together."""

    shards: list[Shard] = field(default_factory=list)
    statistics: dict[Split, Statistics] = field(
        default_factory=lambda: {split: Statistics() for split in SPLITS}
    )
    rejected: list[Rejected] = field(default_factory=list)
    raw_bytes: int = 0
    rotated: int = 0
    first_rotated: str = ""


def finish(
    planned: Planned, journal: ConversionJournal, catalogue: RecordCatalogue, run_id: str
) -> Manifest:
    """Write index, rejected records and manifest beside the finished shards."""
    results = _merge(planned, journal, catalogue)
    _check(planned, results)
    records = sum(found.records for found in results.statistics.values())
    files = RawFiles(catalogue.digest_files(), records, results.raw_bytes)
    facts = planned.source.describe(results.statistics, files)
    target = results.statistics["train"].target
    rejected = None
    try:
        parts = (journal.outcome(plan.name).index for plan in planned.shards)
        index = write_index(journal.content, parts)
        if results.rejected:
            rejected = write_rejected(journal.content / REJECTED_NAME, results.rejected)
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
        target=None if target is None else Target(**target.summary()),
        counts={split: found.records for split, found in results.statistics.items()},
        label_counts=_label_counts(results.statistics, planned.labels),
        shards=tuple(results.shards),
        compression=planned.compression,
        index=index,
        rejected=rejected,
        columns=tuple(planned.scan.columns),
        source=_source(planned, results, facts),
        seed=planned.seed,
        fractions=planned.assignment.fractions,
        given_splits=planned.assignment.given,
        timonel_version=__version__,
        run_id=run_id,
    )
    _remove_strays(journal, manifest)
    write_manifest(journal.content, manifest)
    return manifest


def _merge(planned: Planned, journal: ConversionJournal, catalogue: RecordCatalogue) -> _Results:
    results = _Results(rejected=list(planned.scan.rejected))
    for plan in planned.shards:
        outcome = journal.outcome(plan.name)
        results.shards.append(outcome.shard)
        results.statistics[plan.split].merge(outcome.statistics)
        results.rejected += outcome.rejected
        results.raw_bytes += outcome.raw_bytes
        results.rotated += outcome.rotated
        results.first_rotated = results.first_rotated or outcome.first_rotated
        catalogue.add_files(outcome.files)
    return results


def _check(planned: Planned, results: _Results) -> None:
    train = results.statistics["train"]
    lost = _lost(planned, train)
    if planned.source.options.labels:  # not all need to be in the data
        held_out = (results.statistics[split].labels for split in ("validation", "test"))
        lost = [label for label in lost if any(counts[label] for counts in held_out)]
    if planned.scan.task == "multilabel":
        lost = []  # a warning
    if lost or not train.records:
        what = f"no usable record of {lost[0]!r}" if lost else "no usable record"
        raise DataError(
            f"{what} in the training split: {len(results.rejected)} records were rejected",
            hint="repair the rejected records or add others",
        )


def _lost(planned: Planned, train: Statistics) -> list[str]:
    return [label for label in planned.labels if not train.labels[label]]


def _source(planned: Planned, results: _Results, facts: Description) -> SourceInfo:
    scan = planned.scan
    left_out = planned.assignment.left_out
    lost = _lost(planned, results.statistics["train"])
    has_images = any(each.images or each.column_images for each in results.statistics.values())
    warnings = [f"label {label!r} has no training records" for label in lost[:NAMED]]
    warnings += list(_lookalikes("labels", planned.labels))[:NAMED]
    for column in facts.schema.columns if isinstance(facts.schema, TableSchema) else ():
        if isinstance(column, CategoricalColumn):
            found = _lookalikes(f"words of column {column.name}", column.vocabulary)
            warnings += list(found)[:NAMED]
    if results.rotated:
        warnings.append(_sideways(results))
    return SourceInfo(
        plugin=planned.source.plugin,
        uri=without_credentials(planned.source.location.uri),
        digest=facts.digest,
        files=facts.files,
        bytes=facts.bytes,
        check=planned.source.options.check if has_images else None,
        ignored=tuple(scan.ignored[:NAMED]),
        ignored_count=len(scan.ignored),
        left_out=tuple(Rejected(key=key, reason=reason) for key, reason in left_out[:NAMED]),
        left_out_count=len(left_out),
        rejected=tuple(results.rejected[:NAMED]),
        rejected_count=len(results.rejected),
        duplicates=planned.identical.first,
        duplicate_count=planned.identical.count,
        contradiction_count=planned.identical.contradictions,
        notes=tuple(scan.notes),
        warnings=(*scan.warnings, *planned.assignment.warnings, *warnings),
    )


def _lookalikes(what: str, words: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each word that only looks different from another one."""
    first: dict[object, str] = {}
    for word in words:
        is_number, normal = math.isfinite(parse_number(word)), unicodedata.normalize("NFC", word)
        key = Decimal(word) if is_number else " ".join(normal.casefold().split())
        if (known := first.setdefault(key, word)) != word:
            how, cure = "alike but for case or spaces", "write them alike"
            if is_number:
                how = "equal numbers"
            elif normal == unicodedata.normalize("NFC", known):
                how, cure = "alike, but different Unicode characters", "normalize them to NFC"
            yield f"two {what}, {known!r} and {word!r}, are {how}: {cure}, or they stay two"


def _sideways(results: _Results) -> str:
    files = any(found.images for found in results.statistics.values())
    cure = ", or re-encode them with --quality 90" if files else ""
    return (
        f"{counted(results.rotated, 'image')} stored sideways or mirrored, because TensorFlow "
        f"ignores the EXIF orientation, the first: {results.first_rotated}: rotate the files, for "
        f"example with 'exiftran -ai'{cure}"
    )


def _label_counts(
    statistics: dict[Split, Statistics], labels: Sequence[str]
) -> dict[Split, dict[str, int]]:
    if not labels:
        return {}
    return {s: {label: found.labels[label] for label in labels} for s, found in statistics.items()}


def _remove_strays(journal: ConversionJournal, manifest: Manifest) -> None:
    """Remove files of writers that were killed, or that wrote a shard for a second time."""
    known = {file.name for file in manifest.files}
    for path in [path for path in journal.content.iterdir() if path.name not in known]:
        path.unlink(missing_ok=True)
