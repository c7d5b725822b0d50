"""Report of a dataset as one HTML page, with pictures."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from timonel import pages
from timonel.data.dataset import Dataset
from timonel.data.inspection import charts
from timonel.data.inspection.browsing import Record, describe, record_of
from timonel.data.inspection.distributions import Distribution, Numbers, Words
from timonel.data.inspection.profile import Progress, types_of
from timonel.data.inspection.survey import Place, Survey, first_image, survey
from timonel.data.rejected import read_rejected
from timonel.data.schema import LABEL_FEATURE, SPLITS, Split
from timonel.data.sources.imagefile import open_image
from timonel.data.summary import counted, summarise
from timonel.storage.location import Location
from timonel.styles import plain

_SIDE = 160
"""Longer side of a thumbnail in pixels."""
_MAX_PAIRS = 24
_MAX_SAMPLES = _MAX_LABELS = 300
_PER_LABEL = 8
_MAX_REJECTED = 50
_IMBALANCE = 10
_STYLE = """
.grid { display: flex; flex-wrap: wrap; gap: .6em; margin: .3em 0 1.5em }
.grid figure { width: 110px } .grid img { width: 110px; height: 110px; object-fit: contain;
  background: #f2f2f2 } h3 { font-size: 1em; margin: 1em 0 .2em }
.pair { display: flex; flex-wrap: wrap; gap: .6em; border: 1px solid #ddd; padding: .5em }
.pair > figcaption { width: 100% }
.facts td { overflow-wrap: anywhere }
.warning { border-left: 4px solid #E69F00; padding-left: .8em }
"""


@dataclass(frozen=True)
class Report:
    """Report of a dataset.

    Args:
        uri: Location of the HTML page.
        records: Number of records.
        identical: Number of groups of identical records.
        near_duplicates: Number of images with a near-duplicate in an earlier split, or with
            another label.
        warnings: Problems for the user to check.
    """

    uri: str
    records: int
    identical: int
    near_duplicates: int
    warnings: tuple[str, ...]


def report(
    dataset: Dataset | str | os.PathLike[str],
    out: str | os.PathLike[str] = "report.html",
    *,
    progress: Progress | None = None,
) -> Report:
    """Write one HTML page about a dataset; it loads no other files.

    It has the counts per split and label, distributions and missing values of all columns,
    identical records, near-duplicate images across splits, samples, and rejected records.

    Args:
        dataset: The dataset, its folder, or its URI in a bucket.
        out: Path of the page, or its URI in a bucket; an existing one is replaced.
        progress: Called with the number of read and of all records.

    Raises:
        SpecError: ``out`` does not end in ``.html``.
        CorruptError: A record is damaged.
        InputError: The page cannot be written.
    """
    page = Location(out)
    pages.check_ending(page.uri, "a report")
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    per_label = max(1, min(_PER_LABEL, _MAX_SAMPLES // max(1, len(opened.labels))))
    sections = _Page(opened, survey(opened, per_label, progress))
    page.write(sections.html().encode("utf-8", "backslashreplace"))
    found = sections.survey
    return Report(
        page.uri, opened.count(), found.identical.groups, len(found.pairs), tuple(sections.warnings)
    )


class _Page:
    """Sections of the page."""

    def __init__(self, dataset: Dataset, found: Survey) -> None:
        self.dataset = dataset
        self.survey = found
        self.warnings = [*summarise(dataset).warnings, *_warnings(dataset, found)]
        self._splits = tuple(found.profiles)
        self._types = types_of(dataset)
        self._records = {split: dataset.records(split) for split in self._splits}

    def html(self) -> str:
        """Return the page."""
        name = self.dataset.uri.rstrip("/").rpartition("/")[2]
        summary = summarise(self.dataset)
        facts = [("records", summary.title), *summary.facts, ("location", self.dataset.uri)]
        sections = [
            f"<div class=facts>{pages.table(facts)}</div>",
            "".join(f"<p class=warning>{escape(line)}</p>" for line in self.warnings),
            *self._labels(),
            *self._missing(),
            *self._distributions(),
            *self._identical(),
            *self._near_duplicates(),
            *self._samples(),
            *self._rejected(),
        ]
        return pages.page(f"Dataset {name}", "".join(sections), charts.STYLE + _STYLE)

    def _labels(self) -> Iterator[str]:
        by_split = self.dataset.manifest.label_counts
        counts = {
            label: {split: by_split.get(split, {}).get(label, 0) for split in SPLITS}
            for label in self.dataset.labels[:_MAX_LABELS]
        }
        yield "<h2>Records by label and split</h2>"
        yield charts.count_rows(counts, {split: self.dataset.count(split) for split in SPLITS})
        if len(self.dataset.labels) > _MAX_LABELS:
            yield f"<p>The first {_MAX_LABELS} of {len(self.dataset.labels):,} labels.</p>"

    def _missing(self) -> Iterator[str]:
        rows = []
        for name, parts in self._columns().items():
            if any(part.missing for part in parts.values()):
                shares = (_missing_share(parts.get(split)) for split in self._splits)
                rows.append((name, *shares))
        if rows:
            yield "<h2>Missing values</h2>"
            yield pages.table(rows, ("column", *self._splits))

    def _distributions(self) -> Iterator[str]:
        yield "<h2>Distributions by split</h2>" + charts.legend(self._splits)
        yield "<p>Shares of the values of each split.</p><div class=charts>"
        for name, parts in self._columns().items():
            numbers = {s: part for s, part in parts.items() if isinstance(part, Numbers)}
            words = {s: part for s, part in parts.items() if isinstance(part, Words)}
            if numbers:
                yield charts.histogram(name, numbers)
            if words and name != LABEL_FEATURE:
                yield charts.words(name, words)
        yield "</div>"

    def _columns(self) -> dict[str, dict[Split, Distribution]]:
        """Return the distributions of each column by split."""
        profiles = self.survey.profiles
        names = sorted({name for found in profiles.values() for name in found.distributions})
        return {
            name: {
                split: found.distributions[name]
                for split, found in profiles.items()
                if name in found.distributions
            }
            for name in names
        }

    def _identical(self) -> Iterator[str]:
        found = self.survey.identical
        yield "<h2>Identical records</h2>"
        if not found.groups:
            yield "<p>No two records have the same content.</p>"
            return
        yield (
            f"<p>{found.groups:,} groups of records have the same content besides key and label: "
            f"{found.across_splits:,} with records in several splits, {found.contradictory:,} with "
            "several labels. Here are the first records of some.</p><div class=grid>"
        )
        for group in found.first:
            yield f"<div class=pair>{''.join(map(self._figure, group))}</div>"
        yield "</div>"

    def _near_duplicates(self) -> Iterator[str]:
        pairs = self.survey.pairs
        if not self._has_images():
            return
        yield "<h2>Near-duplicate images</h2>"
        if not pairs:
            yield "<p>No image looks like one of another split or label.</p>"
            return
        shown = f"; the closest {_MAX_PAIRS} are shown" if len(pairs) > _MAX_PAIRS else ""
        yield (
            f"<p>{len(pairs):,} images look like an image of an earlier split, or of another label"
            f"{shown}. Their hashes of 256 bits differ in few bits.</p><div class=grid>"
        )
        for pair in pairs[:_MAX_PAIRS]:
            yield (
                f"<div class=pair>{self._figure(pair.original)}{self._figure(pair.copy)}"
                f"<figcaption>different bits: {pair.distance}</figcaption></div>"
            )
        yield "</div>"

    def _samples(self) -> Iterator[str]:
        yield "<h2>Samples</h2>"
        if not self._has_images():
            yield from self._rows()
            return
        left = _MAX_SAMPLES
        for label, places in sorted(self.survey.samples.items(), key=self._number):
            if left <= 0:
                yield f"<p>Labels after the first {_MAX_SAMPLES} have no samples here.</p>"
                return
            left -= len(places)
            yield f"<h3>{escape(label)}</h3>" if label else ""
            figures = (self._figure(place, is_labelled=True) for place in places)
            yield f"<div class=grid>{''.join(figures)}</div>"

    def _rows(self) -> Iterator[str]:
        """Return a table of rows."""
        places = [place for found in self.survey.samples.values() for place in found]
        records = [self._record(place) for place in places[:_MAX_SAMPLES]]
        names = sorted({name for record in records for name in record.features} - {"key", "label"})
        rows = [
            (
                record.key or "",
                _text(record.label),
                *(_values(record, name) for name in names),
            )
            for record in records
        ]
        heads = [name.removeprefix("column/") for name in names]
        yield pages.table(rows, ("key", "label", *heads))

    def _rejected(self) -> Iterator[str]:
        manifest = self.dataset.manifest
        if manifest.rejected is None:
            return
        found = read_rejected(self.dataset.path / manifest.rejected.name)
        yield f"<h2>Rejected records</h2><p>{len(found):,} records could not be used.</p>"
        reasons = Counter(each.reason for each in found)
        yield pages.table(
            [(reason, f"{count:,}") for reason, count in reasons.most_common(_MAX_REJECTED)],
            ("reason", "records"),
        )
        rows = [(each.key, each.reason) for each in found[:_MAX_REJECTED]]
        yield pages.table(rows, ("record", "reason"))

    def _figure(self, place: Place, *, is_labelled: bool = False) -> str:
        record = self._record(place)
        name = (record.key or "").rpartition("/")[2]
        caption = name if is_labelled else f"{place[0]}: {record.key}, label {_text(record.label)}"
        content = first_image(record.features, self._types)
        image = "" if content is None else thumbnail(content, f"Image {record.key}")
        return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"

    def _record(self, place: Place) -> Record:
        split, position = place
        return record_of(self.dataset, split, position, self._records[split].payload(position))

    def _has_images(self) -> bool:
        return "image" in self._types.values()

    def _number(self, sample: tuple[str, Sequence[Place]]) -> int:
        labels = self.dataset.labels
        return labels.index(sample[0]) if sample[0] in labels else len(labels)


def thumbnail(content: bytes, description: str) -> str:
    """Return an HTML image with a small version of an encoded image; a text if it is damaged."""
    file = io.BytesIO()
    try:
        with open_image(content) as image:  # type: ignore[union-attr] # None is caught below
            image.draft("RGB", (_SIDE, _SIDE))
            small = image.convert("RGB")
            small.thumbnail((_SIDE, _SIDE))
            kind = "png" if max(small.size) < _SIDE // 4 else "jpeg"
            small.save(file, kind, quality=75)
    except Exception:  # noqa: BLE001 - decoders raise all kinds of exceptions
        return "<p>cannot be decoded</p>"
    return pages.picture(file.getvalue(), f"image/{kind}", description)


def _warnings(dataset: Dataset, found: Survey) -> Iterator[str]:
    train = dataset.manifest.label_counts.get("train", {})
    if train and max(train.values()) > _IMBALANCE * min(train.values()):
        most, least = max(train, key=train.__getitem__), min(train, key=train.__getitem__)
        yield (
            f"imbalanced labels: train has {train[most]:,} records of {most} and {train[least]:,} "
            f"of {least}"
        )
    empty = [split for split in SPLITS if not dataset.count(split)]
    if empty:
        yield f"no records in {' and '.join(empty)}"
    across = sum(pair.copy[0] != pair.original[0] for pair in found.pairs)
    if across:
        yield (
            f"{counted(across, 'near-duplicate')} of an image in an earlier split: results may be "
            "too good"
        )
    if len(found.pairs) > across:
        what = counted(len(found.pairs) - across, "near-duplicate")
        yield f"{what} of an image with another label"
    group = "group of identical records", "groups of identical records"
    across, contradictory = found.identical.across_splits, found.identical.contradictory
    if across:
        yield f"{across:,} {group[across > 1]} in several splits"
    if contradictory and not dataset.manifest.source.contradiction_count:  # which is a warning
        yield f"{contradictory:,} {group[contradictory > 1]} with several labels"
    first = next(iter(found.profiles.values()))
    for name, part in first.distributions.items():
        if part.missing > part.count:
            yield f"{name}: most values are missing"


def _missing_share(part: Distribution | None) -> str:
    total = 0 if part is None else part.count + part.missing
    return "" if part is None or not total else f"{part.missing:,} ({part.missing / total:.1%})"


def _values(record: Record, name: str) -> str:
    found = describe(record.features.get(name, []))
    return ", ".join(_text(value) for value in found.get("values", ()))


def _text(value: object) -> str:
    return plain(value) if isinstance(value, float) else str(value)
