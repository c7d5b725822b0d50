"""A dataset in a few plain values, for whoever prints them."""

from __future__ import annotations

from dataclasses import dataclass

from timonel.data.dataset import Dataset
from timonel.data.schema import SPLITS, ImageSchema
from timonel.units import format_bytes


@dataclass(frozen=True)
class Report:
    """What a terminal shows of a dataset.

    Args:
        title: One line: what it is and how much.
        header: Names of the table's columns.
        rows: One per label, the sum last.
        facts: Name and value of whatever else is worth knowing.
        warnings: What the user should look at.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()


def summarise(dataset: Dataset) -> Report:
    """Return what to show of a dataset."""
    manifest = dataset.manifest
    what = "images" if isinstance(manifest.record_schema, ImageSchema) else "rows"
    size = format_bytes(sum(shard.bytes for shard in manifest.shards))
    return Report(
        title=f"{dataset.count():,} {what}, {size} in {len(manifest.shards)} shards",
        header=("label", *SPLITS, "all"),
        rows=_rows(dataset),
        facts=_facts(dataset),
        warnings=_warnings(dataset),
    )


def _rows(dataset: Dataset) -> tuple[tuple[str, ...], ...]:
    counts = dataset.manifest.label_counts
    rows = [
        (label, *_with_sum([counts.get(split, {}).get(label, 0) for split in SPLITS]))
        for label in dataset.labels
    ]
    return (*rows, ("all", *_with_sum([dataset.count(split) for split in SPLITS])))


def _with_sum(counts: list[int]) -> list[str]:
    return [f"{count:,}" for count in (*counts, sum(counts))]


def _facts(dataset: Dataset) -> tuple[tuple[str, str], ...]:
    manifest = dataset.manifest
    schema = manifest.record_schema
    facts: list[tuple[str, str]] = [("task", manifest.task)]
    if isinstance(schema, ImageSchema):
        size = f"{schema.height.minimum}x{schema.width.minimum}"
        if schema.size is None:
            size += f" to {schema.height.maximum}x{schema.width.maximum}"
            size += f", half below {schema.height.median}x{schema.width.median}"
        formats = ", ".join(f"{count:,} {name}" for name, count in schema.formats.items())
        facts += [("size", size), ("formats", formats)]
        facts.append(("colour", "grey" if schema.channels == 1 else "colour"))
    else:
        numeric = sum(column.type == "numeric" for column in schema.columns)
        facts.append(("columns", f"{numeric} numeric, {len(schema.columns) - numeric} categorical"))
        facts.append(("label", schema.label))
    if manifest.target is not None:
        target = manifest.target
        facts.append(("target", f"{target.minimum:g} to {target.maximum:g}, mean {target.mean:g}"))
    return (*facts, ("digest", manifest.digest))


def _warnings(dataset: Dataset) -> tuple[str, ...]:
    source = dataset.manifest.source
    warnings = []
    if source.skipped_count:
        first = source.skipped[0]
        warnings.append(f"{source.skipped_count} skipped, the first: {first.key}: {first.reason}")
    if source.ignored_count:
        warnings.append(f"{source.ignored_count} ignored, the first: {source.ignored[0]}")
    return tuple(warnings)
