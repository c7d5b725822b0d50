"""Summary of a dataset as plain values for display."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from timonel.data.dataset import Dataset
from timonel.data.schema import (
    SPLITS,
    ImageSchema,
    Schema,
    Spread,
    WordColumn,
    columns_option,
    type_word,
)
from timonel.units import counted, format_bytes

_NAMED = 5


@dataclass(frozen=True)
class DatasetSummary:
    """Summary of a dataset for display.

    Args:
        title: One line with record count, size and number of shards.
        header: Column names of the label table.
        rows: One row per label, then the totals.
        facts: Names and values of other properties.
        columns: For tables: name, role, values and note of each source column.
        warnings: Problems for the user to check.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()
    columns: tuple[tuple[str, str, str, str], ...] = ()

    def __str__(self) -> str:
        width = max([len(column[0]) for column in self.columns], default=0)
        return "\n".join(
            [
                self.title,
                *(f"{name}: {value}" for name, value in self.facts),
                *(
                    f"  {name:{width}}  {role}  {'; '.join(filter(None, (values, note)))}".rstrip()
                    for name, role, values, note in self.columns
                ),
                *(f"warning: {line}" for line in self.warnings),
            ]
        )


def summarise(dataset: Dataset) -> DatasetSummary:
    """Return the summary of a dataset."""
    manifest = dataset.manifest
    what = "image" if isinstance(manifest.record_schema, ImageSchema) else "row"
    size = format_bytes(sum(shard.bytes for shard in manifest.shards))
    return DatasetSummary(
        title=f"{counted(dataset.count(), what)}, {size} in "
        f"{counted(len(manifest.shards), 'shard')}",
        header=("label", *SPLITS, "all"),
        rows=_rows(dataset),
        facts=_facts(dataset),
        warnings=warnings_of(dataset),
        columns=_columns(dataset),
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
        sides = (("height", schema.height), ("width", schema.width))
        facts += [(name, f"{_range(spread)} pixels") for name, spread in sides]
        formats = ", ".join(f"{count:,} {name}" for name, count in schema.formats.items())
        facts.append(("formats", formats))
        facts.append(("channels", "1 (grey)" if schema.channels == 1 else "3 (colour)"))
    else:
        types = Counter(type_word(column.type) for column in schema.columns)
        facts.append(("columns", ", ".join(f"{count} {name}" for name, count in types.items())))
        facts.append(("label", schema.label))
    if manifest.target is not None:
        target = manifest.target
        facts.append(("target", f"{target.minimum:g} to {target.maximum:g}, mean {target.mean:g}"))
    if manifest.given_splits:
        taken = "" if "validation" in manifest.given_splits else "; validation taken from train"
        facts.append(("splits", f"assigned by the source{taken}"))
    facts += [("source", note) for note in manifest.source.notes]
    return (*facts, ("digest", manifest.digest))


def _range(spread: Spread) -> str:
    if spread.minimum == spread.maximum:
        return str(spread.minimum)
    return f"{spread.minimum} to {spread.maximum}, median {spread.median}"


def _columns(dataset: Dataset) -> tuple[tuple[str, str, str, str], ...]:
    schema = dataset.manifest.record_schema
    described = {} if isinstance(schema, ImageSchema) else {c.name: c for c in schema.columns}
    return tuple(
        (
            column.name,
            type_word(column.role),
            described[column.name].values if column.name in described else "",
            column.note,
        )
        for column in dataset.manifest.columns
    )


def warnings_of(dataset: Dataset) -> tuple[str, ...]:
    """Return one line per problem that the user should check."""
    manifest = dataset.manifest
    source = manifest.source
    what = "image" if isinstance(manifest.record_schema, ImageSchema) else "row"
    warnings = list(source.warnings)
    doubtful = [
        f"column {column.name}{' dropped' if column.role == 'drop' else ''}: {column.note}"
        for column in manifest.columns
        if column.is_doubtful
    ]
    warnings += doubtful[:_NAMED]
    if (more := len(doubtful) - _NAMED) > 0:
        warnings.append(
            f"{counted(more, 'more column')} to check: 'timonel data schema {dataset.uri}'"
        )
    warnings += _cut_vocabularies(manifest.record_schema)
    if source.contradiction_count:
        twins = source.duplicates[0].keys
        warnings.append(
            f"{counted(source.contradiction_count, what)} with contradictory labels, "
            f"the first: {twins[0]} and {twins[1]}: correct the labels"
        )
    agreeing = source.duplicate_count - source.contradiction_count
    if agreeing:
        named = [group.keys for group in source.duplicates if len(group.labels) == 1]
        example = f", the first: {named[0][0]} and {named[0][1]}" if named else ""
        is_grouped = any(column.role == "group" for column in manifest.columns)
        stay = "" if is_grouped else "; copies stay in one split"
        warnings.append(f"{counted(agreeing, f'duplicate {what}')}{example}{stay}")
    for count, records, fate in (
        (source.left_out_count, source.left_out, "left out"),
        (source.rejected_count, source.rejected, "rejected"),
    ):
        if records:
            first = records[0]
            warnings.append(
                f"{counted(count, what)} {fate}, the first: {first.key}: {first.reason}"
            )
    if source.ignored_count:
        others = source.ignored_count - _NAMED
        rest = f" and {others:,} more: 'timonel data report' lists them" if others > 0 else ""
        listed = ", ".join(source.ignored[:_NAMED])
        warnings.append(f"{counted(source.ignored_count, 'item')} ignored: {listed}{rest}")
    return tuple(warnings)


def _cut_vocabularies(schema: Schema) -> list[str]:
    """Return a line for each column with more words than its vocabulary."""
    columns = () if isinstance(schema, ImageSchema) else schema.columns
    cut = [each for each in columns if isinstance(each, WordColumn) and each.dropped]
    return [
        f"column {column.name}: the rarest {column.dropped:,} of "
        f"{column.dropped + len(column.vocabulary):,} words are not in the vocabulary, and "
        + (
            "are ignored: raise it with --max-vocabulary"
            if column.type == "text"
            else "count as unknown: raise it with --max-vocabulary, or use "
            + columns_option(column.name, "text")
        )
        for column in cut[:_NAMED]
    ]
