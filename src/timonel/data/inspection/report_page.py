"""Report of a dataset as one HTML page, with pictures."""

from __future__ import annotations

import io
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from PIL import ImageDraw

from timonel import pages
from timonel.data.dataset import Dataset
from timonel.data.inspection import charts
from timonel.data.inspection.browsing import Record, describe, record_of
from timonel.data.inspection.distributions import Distribution, Numbers, Words, as_date
from timonel.data.inspection.near_duplicates import MIN_SIDE
from timonel.data.inspection.profile import Progress, types_of
from timonel.data.inspection.survey import MAX_GROUPS, Place, Survey, first_image, survey
from timonel.data.manifest import Rejected
from timonel.data.rejected import read_rejected
from timonel.data.schema import COLUMN_PREFIX, LABEL_FEATURE, SPLITS, Split
from timonel.data.sources.imagefile import open_image
from timonel.data.sources.kinds.dates import MISSING_DATE
from timonel.data.sources.kinds.lists import BOX_VALUES
from timonel.data.summary import summarise
from timonel.storage.location import Location
from timonel.units import counted

_SIDE = 160
"""Longer side of a thumbnail in pixels."""
_MAX_PAIRS = 24
_MAX_SAMPLES = _MAX_LABELS = 300
_MAX_ROWS = 50
_PER_LABEL = 8
_MAX_REJECTED = 50
_IMBALANCE = 10
_LEAK = "evaluations may be too good"
_STYLE = """
.grid { display: flex; flex-wrap: wrap; gap: .6em; margin: .3em 0 1.5em }
.grid figure { width: 110px } .grid img { width: 110px; height: 110px; object-fit: contain;
  background: #f2f2f2 } h3 { font-size: 1em; margin: 1em 0 .2em }
.pairs { display: grid; gap: .6em; grid-template-columns:
  repeat(auto-fill, minmax(min(250px, 100%), 1fr)) }
.pair { display: flex; flex-wrap: wrap; gap: .6em; border: 1px solid #ddd; padding: .5em }
.pair figure { flex: 1 1 110px } .pair img { width: 100%; height: 130px; object-fit: contain;
  background: #f2f2f2 }
.facts td, .rows td { overflow-wrap: anywhere }
.rows td { min-width: 4em; max-width: 26em }
.warning { border-left: 4px solid #E69F00; padding-left: .8em }
"""


@dataclass(frozen=True)
class DatasetReport:
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
) -> DatasetReport:
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
    return DatasetReport(
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
            *self._ignored(),
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
        yield "<p>Percentages are of the values in each split; missing values do not count.</p>"
        yield "<div class=charts>"
        constant = []
        for name, parts in self._columns().items():
            numbers = {s: part for s, part in parts.items() if isinstance(part, Numbers)}
            words = {s: part for s, part in parts.items() if isinstance(part, Words)}
            values = {value for part in parts.values() for value in _first_two(part)}
            if name == LABEL_FEATURE and words:
                continue
            if len(values) < 2:
                constant.append(f"{name} ({', '.join(values) or 'no values'})")
            elif numbers:
                yield charts.histogram(name, numbers, self._unit(name))
            else:
                yield charts.words(name, words)
        yield "</div>"
        if constant:
            yield f"<p>Only one value: {escape(', '.join(constant))}.</p>"

    def _unit(self, name: str) -> str:
        """Return the unit of a distribution of images, boxes or lengths."""
        feature = next(f.origins[name] for f in self.survey.profiles.values() if name in f.origins)
        column, part = feature.removeprefix(COLUMN_PREFIX), name.rpartition(" ")[2]
        if name == column:
            return ""
        sides = "fraction of the image" if self._types.get(feature) == "boxes" else "pixels"
        return {"bytes": "bytes", "width": sides, "height": sides}.get(part, "")

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
            f"<p>Groups of records that differ in key and label only: {found.groups:,}, of which "
            f"{found.across_splits:,} have records in several splits, and {found.contradictory:,} "
            f"have several labels. At most {MAX_GROUPS} groups are shown.</p><div class=pairs>"
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
            yield (
                "<p>No image looks like an image in another split or with another label. Images "
                f"with a side below {MIN_SIDE} pixels are not compared.</p>"
            )
            return
        shown = (
            f" The {_MAX_PAIRS} most similar pairs are shown." if len(pairs) > _MAX_PAIRS else ""
        )
        yield (
            f"<p>Images that look like an image in another split or with another label: "
            f"{len(pairs):,}.{shown}</p><div class=pairs>"
        )
        for pair in pairs[:_MAX_PAIRS]:
            yield f"<div class=pair>{self._figure(pair.original)}{self._figure(pair.copy)}</div>"
        yield "</div>"

    def _samples(self) -> Iterator[str]:
        yield "<h2>Samples</h2>"
        if not self._has_images():
            yield from self._rows()
            return
        left = _MAX_SAMPLES
        for label, places in sorted(self.survey.samples.items(), key=self._number):
            if left <= 0:
                yield f"<p>The other labels are left out: the limit is {_MAX_SAMPLES} samples.</p>"
                return
            left -= len(places)
            yield f"<h3>{escape(label)}</h3>" if label else ""
            figures = (self._figure(place, is_labelled=True) for place in places)
            yield f"<div class=grid>{''.join(figures)}</div>"

    def _rows(self) -> Iterator[str]:
        """Return a table of rows."""
        places = dict.fromkeys(itertools.chain(*self.survey.samples.values()))
        records = list(map(self._record, itertools.islice(places, _MAX_ROWS)))
        names = sorted({name for record in records for name in record.features} - {"key", "label"})
        rows = [
            (
                charts.shortened(record.key or ""),
                charts.shortened(_text(record.label)),
                *(self._values(record, name) for name in names),
            )
            for record in records
        ]
        heads = [name.removeprefix("column/") for name in names]
        yield f"<div class=rows>{pages.table(rows, ('key', 'label', *heads))}</div>"

    def _rejected(self) -> Iterator[str]:
        manifest = self.dataset.manifest
        if manifest.rejected is None:
            return
        found = read_rejected(self.dataset.path / manifest.rejected.name)
        yield f"<h2>Rejected records</h2><p>{len(found):,} records could not be used.</p>"
        reasons = Counter(map(_kind_of_reason, found))
        yield pages.table(
            [(reason, f"{count:,}") for reason, count in reasons.most_common(_MAX_REJECTED)],
            ("reason", "records"),
        )
        rows = [(each.key, each.reason) for each in found[:_MAX_REJECTED]]
        yield pages.table(rows, ("record", "reason"))

    def _ignored(self) -> Iterator[str]:
        source = self.dataset.manifest.source
        if not source.ignored_count:
            return
        yield f"<h2>Ignored items</h2><p>{counted(source.ignored_count, 'item')} of the source"
        if source.ignored_count > len(source.ignored):
            yield f", of which the first {len(source.ignored)} are shown"
        yield ":</p>" + pages.table([(name,) for name in source.ignored])

    def _figure(self, place: Place, *, is_labelled: bool = False) -> str:
        record = self._record(place)
        key = record.key or ""
        lines = [key.rpartition("/")[2]]
        if not is_labelled:
            lines = [f"{place[0]}, label {_text(record.label)}", key]
        content = first_image(record.features, self._types)
        image = "" if content is None else thumbnail(content, f"Image {key}", self._boxes(record))
        caption = "<br>".join(escape(charts.shortened(line)) for line in lines)
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"

    def _boxes(self, record: Record) -> list[Sequence[float]]:
        """Return ymin, xmin, ymax and xmax of each box, as fractions."""
        names = (name for name in record.features if self._types.get(name) == "boxes")
        found = itertools.chain.from_iterable(record.features[name] for name in names)
        return [box[:4] for box in zip(*[found] * BOX_VALUES, strict=True)]

    def _values(self, record: Record, name: str) -> str:
        values = record.features.get(name, [])
        if self._types.get(name) == "date":
            return ", ".join(as_date(value) for value in values if value != MISSING_DATE)
        return charts.shortened(", ".join(map(_text, describe(values).get("values", ()))))

    def _record(self, place: Place) -> Record:
        split, position = place
        return record_of(self.dataset, split, position, self._records[split].payload(position))

    def _has_images(self) -> bool:
        return "image" in self._types.values()

    def _number(self, sample: tuple[str, Sequence[Place]]) -> int:
        labels = self.dataset.labels
        return labels.index(sample[0]) if sample[0] in labels else len(labels)


def thumbnail(content: bytes, description: str, boxes: Iterable[Sequence[float]] = ()) -> str:
    """Return an HTML image with a small version of an encoded image; a text if it is damaged.

    Boxes to draw are ymin, xmin, ymax, xmax as fractions.
    """
    file = io.BytesIO()
    try:
        with open_image(content) as image:  # type: ignore[union-attr] # None is caught below
            image.draft("RGB", (_SIDE, _SIDE))
            small = image.convert("RGB")
            small.thumbnail((_SIDE, _SIDE))
            draw = ImageDraw.Draw(small)
            for top, left, bottom, right in boxes:
                corners = (left * small.width, top * small.height)
                opposite = (right * small.width, bottom * small.height)
                draw.rectangle((corners, opposite), outline=pages.ORANGE, width=2)
            kind = "png" if max(small.size) < _SIDE // 4 else "jpeg"
            small.save(file, kind, quality=75)
    except Exception:  # noqa: BLE001 - decoders raise all kinds of exceptions
        return "<p>cannot be decoded</p>"
    return pages.picture(file.getvalue(), f"image/{kind}", description)


def _warnings(dataset: Dataset, found: Survey) -> Iterator[str]:
    train = dataset.manifest.label_counts.get("train", {})
    if train and max(train.values()) > _IMBALANCE * min(train.values()):
        ends = (max(train, key=train.__getitem__), min(train, key=train.__getitem__))
        most, least = (f"{train[label]:,} of {charts.shortened(label)!r}" for label in ends)
        yield f"imbalanced labels: train has {most}, and {least}"
    empty = [split for split in SPLITS if not dataset.count(split)]
    if empty:
        yield f"no records in {' and '.join(empty)}"
    across = sum(pair.copy[0] != pair.original[0] for pair in found.pairs)
    if across:
        yield f"{counted(across, 'near-duplicate image')} across splits: {_LEAK}"
    if len(found.pairs) > across:
        what = counted(len(found.pairs) - across, "near-duplicate image")
        yield f"{what} with another label: check the labels"
    across, contradictory = found.identical.across_splits, found.identical.contradictory
    if across:
        yield f"{counted(across, 'group')} of identical records across splits: {_LEAK}"
    if contradictory and not dataset.manifest.source.contradiction_count:  # which is a warning
        what = counted(contradictory, "group")
        yield f"{what} of identical records with several labels: correct the labels"
    first = next(iter(found.profiles.values()))
    for name, part in first.distributions.items():
        if part.missing > part.count:
            yield f"{name}: most values are missing"


def _kind_of_reason(rejected: Rejected) -> str:
    """Return the reason without the value and the position, which differ between records."""
    reason = rejected.reason
    if rejected.value:
        reason = reason.replace(repr(rejected.value), "...")
    return re.sub(r"(?<= )\d[\d,.]*(?= |$)", "...", reason)


def _missing_share(part: Distribution | None) -> str:
    total = 0 if part is None else part.count + part.missing
    return "" if part is None or not total else f"{part.missing:,} ({part.missing / total:.1%})"


def _first_two(part: Distribution) -> list[str]:
    """Return up to two different values."""
    if isinstance(part, Words):
        words = [word for word, _ in part.common(2)]
        return words if part.counts is not None else ["", "many"]
    return list({part.show(value) for value in part.quantiles((0, 1))})


def _text(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return str(value)
