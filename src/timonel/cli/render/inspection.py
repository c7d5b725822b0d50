"""Render records, statistics and verifications of datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from timonel.cli.render.tables import pairs, printable, table
from timonel.data.inspection.distributions import Numbers
from timonel.styles import from_here, plain
from timonel.units import format_seconds

if TYPE_CHECKING:
    from timonel.data import Comparison, DatasetReport, Inspection, Profile, Record, Verification
    from timonel.data.inspection.profile import Feature
    from timonel.data.schema import Split

_COMMON = 4


def verification_page(found: Verification) -> RenderableType:
    """Render the problems of a dataset, or one line if it has none."""
    if not found.problems:
        text = f"{found.uri}: {found.shards} shards, {found.records:,} records, all intact"
        return Text(text)
    rows = [(problem.file, problem.text) for problem in found.problems]
    return table(("FILE", "PROBLEM"), rows, wide=1)


def inspection_page(found: Inspection) -> RenderableType:
    """Render records, after the features of all records of a TFRecord file."""
    parts: list[RenderableType] = []
    if found.profile is not None:
        profile = found.profile
        rows = [
            (name, *_feature(feature, profile.records), _range(profile, name))
            for name, feature in sorted(profile.features.items())
        ]
        parts += [
            Text(f"{profile.records:,} records", style="bold"),
            table(("FEATURE", "TYPE", "VALUES", "MISSING", "RANGE"), rows, wide=4),
        ]
    for record in found.records:
        parts += [printable(_title(record), style="bold"), pairs(dict(_lines(record)))]
    if not found.records:
        parts.append(Text("no such records"))
    return Group(*parts)


def inspection_json(found: Inspection) -> dict[str, Any]:
    """Return records as JSON."""
    records = [
        {
            "split": record.split,
            "position": record.position,
            "key": record.key,
            "label": record.label,
            "features": record.describe(),
        }
        for record in found.records
    ]
    value: dict[str, Any] = {"records": records}
    if found.profile is not None:
        value["statistics"] = found.profile.summary()
    if found.images:
        value["images"] = list(found.images)
    return value


def statistics_page(found: Mapping[Split, Profile]) -> RenderableType:
    """Render the distributions of each split: numbers first, then words."""
    numbers, words = [], []
    for name in sorted({name for profile in found.values() for name in profile.distributions}):
        for split, profile in found.items():
            each = profile.distributions.get(name)
            if each is None:
                continue
            value = each.summary()
            row = (name, split, f"{value['count']:,}", f"{value['missing']:,}")
            if isinstance(each, Numbers):
                numbers.append((*row, *_moments(each, value)))
            else:
                words.append((*row, _distinct(value["distinct"]), _common(value["common"])))
    head = ("COLUMN", "SPLIT", "COUNT", "MISSING")
    parts: list[RenderableType] = []
    if numbers:
        parts.append(table((*head, "MEAN", "STD", "MIN", "25%", "MEDIAN", "75%", "MAX"), numbers))
    if words:
        parts.append(table((*head, "DISTINCT", "MOST FREQUENT"), words, wide=5))
    return Group(*parts)


def report_lines(found: DatasetReport) -> RenderableType:
    """Render the warnings of a report, and where it is."""
    warnings = [Text(f"warning: {line}", style="yellow") for line in found.warnings]
    return Group(*warnings, Text(f"{from_here(found.uri)}: {found.records:,} records"))


def comparison_page(found: Comparison) -> RenderableType:
    """Render differences of schemas, then distances, those above their limits first."""
    parts: list[RenderableType] = []
    if found.schema:
        changes = [(change.name, change.text) for change in found.schema]
        parts.append(table(("SCHEMA", "CHANGE"), changes, wide=1))
    rows = [
        (
            each.column,
            " / ".join(each.samples),
            Text("differs", style="yellow") if each.is_above else "",
            each.measure,
            f"{each.distance:.3f}",
            f"{each.limit:.3f}",
            each.text,
        )
        for each in found.distances
    ]
    head = ("COLUMN", "SAMPLES", "", "MEASURE", "DISTANCE", "LIMIT", "LARGEST DIFFERENCE")
    parts.append(table(head, rows, wide=6))
    count = len(found.drift)
    what = "1 distribution differs" if count == 1 else f"{count} distributions differ"
    parts.append(Text(f"{what} by more than the limit" if count else "no distribution differs"))
    return Group(*parts)


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON."""
    return {
        "schema": [{"name": change.name, "change": change.text} for change in found.schema],
        "distances": [
            {
                "column": each.column,
                "samples": each.samples,
                "counts": each.counts,
                "measure": each.measure,
                "distance": each.distance,
                "limit": each.limit,
                "differs": each.is_above,
                "largest": each.text,
            }
            for each in found.distances
        ],
    }


def _moments(found: Numbers, value: Mapping[str, Any]) -> Iterator[str | None]:
    quantiles = [value["quantiles"].get(name) for name in ("0.25", "0.5", "0.75")]
    yield found.show(value["mean"]) if found.count else None
    yield format_seconds(value["std"]) if found.is_date else _short(value["std"])
    for each in (value["minimum"], *quantiles, value["maximum"]):
        yield None if each is None else found.show(each)


def _distinct(count: int | None) -> str:
    return "many" if count is None else f"{count:,}"


def _common(counts: Mapping[str, int]) -> str:
    shown = [f"{word} {count:,}" for word, count in list(counts.items())[:_COMMON]]
    return ", ".join([*shown, "..."] if len(counts) > _COMMON else shown)


def _title(record: Record) -> str:
    if record.split is None:
        return f"\nrecord {record.position}"
    return f"\n{record.split} {record.position}: {record.key}, label {_short(record.label)}"


def _lines(record: Record) -> Iterator[tuple[str, str]]:
    for name, found in record.describe().items():
        if record.split is None or name not in {"key", "label"}:
            shown = ", ".join(map(_short, found.get("values", ())))
            more = ", ..." if found["count"] > len(found.get("values", ())) else ""
            count = f" ({found['count']} values)" if found["count"] != 1 else ""
            yield name, f"{found['type']}{count}: {shown}{more}"


def _short(value: object) -> str:
    return plain(value) if isinstance(value, float) else str(value)


def _feature(feature: Feature, records: int) -> tuple[str, str, str]:
    lengths = sorted(feature.lengths.keys() - {0}) or [0]
    count = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    missing = records - feature.lengths.total() + feature.lengths[0]
    return ", ".join(sorted(feature.types)) or "none", count, f"{missing:,}"


def _range(profile: Profile, feature: str) -> str:
    """Return one line about a feature's distributions."""
    name = feature.removeprefix("column/")
    parts = []
    for each, found in profile.distributions.items():
        if each != name and not each.startswith(f"{name} "):
            continue
        value = found.summary()
        if value["type"] == "words":
            text = f"{_distinct(value['distinct'])} distinct: {_common(value['common'])}"
        else:
            text = f"{_short(value['minimum'])} to {_short(value['maximum'])}"
        part = each.removeprefix(name).strip()
        parts.append(f"{part} {text}" if part else text)
    return "; ".join(parts)
