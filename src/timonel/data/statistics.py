"""Statistics of records that can be merged: per shard, then per split.

Each shard's statistics are computed when it is written, so that no conversion keeps facts about
every record, and shards may be written in any order and on any machine.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel

from timonel.data.examples import Feature
from timonel.data.schema import (
    COLUMN_PREFIX,
    ImageFormat,
    Spread,
)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Facts about a verified image.

    Height and width are as TensorFlow decodes it; channels 1 for greyscale, else 3. TensorFlow
    ignores the EXIF orientation, from 1 (upright) to 8.
    """

    format: ImageFormat
    height: int
    width: int
    channels: Literal[1, 3]
    bytes: int
    digest: str
    orientation: int = 1


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """Facts about a record's value in one column, for its statistics.

    The length is in characters, bytes, or the number of values, images or boxes; NaN if the value
    is missing, None for a kind without a length.
    """

    length: float | None = None
    numbers: Sequence[float] = ()
    words: Sequence[str] = ()
    images: Sequence[ImageFacts] = ()


class NumberStatistics(BaseModel):
    """Moments of a number; NaN counts as missing.

    The squares are of differences from the mean, summed. Without values there are no extremes.
    """

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def of(cls, values: array[float]) -> Self:
        """Return the statistics of values, some of which may be NaN."""
        import numpy as np  # noqa: PLC0415 - 100 ms that converting images does not need

        found = np.frombuffer(values, np.float64)
        known = found[~np.isnan(found)]
        if not len(known):
            return cls(missing=len(found))
        mean = float(known.mean())
        return cls(
            count=len(known),
            missing=len(found) - len(known),
            mean=mean,
            squares=float(np.square(known - mean).sum()),
            minimum=float(known.min()),
            maximum=float(known.max()),
        )

    def merge(self, other: NumberStatistics) -> None:
        """Add the values of ``other``, by Chan's formula."""
        self.missing += other.missing
        if not other.count:
            return
        total = self.count + other.count
        gap = other.mean - self.mean
        self.squares += other.squares + gap * gap * self.count * other.count / total
        self.mean += gap * other.count / total
        self.count = total
        self.minimum = min(_known(self.minimum, other.minimum))
        self.maximum = max(_known(self.maximum, other.maximum))

    @property
    def std(self) -> float:
        """Standard deviation of the values."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def summary(self) -> dict[str, float]:
        """Return the statistics as the manifest stores them; without values, all are 0."""
        return {
            "mean": self.mean,
            "std": self.std,
            "minimum": self.minimum or 0.0,
            "maximum": self.maximum or 0.0,
        }


class WordStatistics(BaseModel):
    """Occurrences of each word; an empty word is missing."""

    counts: Counter[str] = Counter()
    missing: int = 0

    def merge(self, other: WordStatistics) -> None:
        """Add the words of ``other``."""
        self.counts.update(other.counts)
        self.missing += other.missing

    def ranked(self) -> list[tuple[str, int]]:
        """Return words and counts, the most frequent first, then by word."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))


_ImageCounts = Counter[tuple[int, int, ImageFormat, int]]
"""Number of images by height, width, format and channels."""


class ImageStatistics(BaseModel):
    """Sizes and formats of images."""

    heights: Counter[int] = Counter()
    widths: Counter[int] = Counter()
    formats: Counter[ImageFormat] = Counter()
    grey: int = 0
    size: tuple[int, int] | None = None
    is_uniform: bool = True

    @classmethod
    def of(cls, counts: _ImageCounts) -> Self:
        """Return the statistics of images that were counted by size, format and channels."""
        result = cls()
        for (height, width, format_, channels), count in counts.items():
            result.heights[height] += count
            result.widths[width] += count
            result.formats[format_] += count
            result.grey += count if channels == 1 else 0
            result._see((height, width))
        return result

    def merge(self, other: ImageStatistics) -> None:
        """Add the images of ``other``."""
        self.heights.update(other.heights)
        self.widths.update(other.widths)
        self.formats.update(other.formats)
        self.grey += other.grey
        if other.size is not None:
            self._see(other.size)
        self.is_uniform = self.is_uniform and other.is_uniform

    def _see(self, size: tuple[int, int]) -> None:
        self.is_uniform = self.is_uniform and self.size in {None, size}
        self.size = size


class Statistics(BaseModel):
    """Statistics of the records of a shard or a split; columns are by name."""

    records: int = 0
    labels: Counter[str] = Counter()
    target: NumberStatistics | None = None
    images: ImageStatistics | None = None
    numbers: dict[str, NumberStatistics] = {}
    words: dict[str, WordStatistics] = {}
    lengths: dict[str, NumberStatistics] = {}
    column_images: dict[str, ImageStatistics] = {}

    def merge(self, other: Statistics) -> None:
        """Add the records of ``other``."""
        self.records += other.records
        self.labels.update(other.labels)
        if other.target is not None:
            self.target = self.target or NumberStatistics()
            self.target.merge(other.target)
        if other.images is not None:
            self.images = self.images or ImageStatistics()
            self.images.merge(other.images)
        for name, numbers in other.numbers.items():
            self.numbers.setdefault(name, NumberStatistics()).merge(numbers)
        for name, words in other.words.items():
            self.words.setdefault(name, WordStatistics()).merge(words)
        for name, lengths in other.lengths.items():
            self.lengths.setdefault(name, NumberStatistics()).merge(lengths)
        for name, images in other.column_images.items():
            self.column_images.setdefault(name, ImageStatistics()).merge(images)


class Collector:
    """Collect the statistics of a shard, record by record.

    Columns without facts are numbers if they are floats, and words if they are text.
    """

    def __init__(self) -> None:
        self._records = 0
        self._labels: Counter[str] = Counter()
        self._targets = array("d")
        self._images: _ImageCounts = Counter()
        self._numbers: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self._words: dict[str, Counter[str]] = defaultdict(Counter)
        self._lengths: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self._column_images: dict[str, _ImageCounts] = defaultdict(Counter)

    def add(
        self,
        label: str | float | Sequence[str],
        features: Mapping[str, Feature],
        image: ImageFacts | None = None,
        facts: Mapping[str, ValueFacts] | None = None,
    ) -> None:
        """Count one record, with the facts that its source found."""
        self._records += 1
        if isinstance(label, float | int):
            self._targets.append(label)
        else:
            self._labels.update([label] if isinstance(label, str) else label)
        if image is not None:
            self._images[_kind(image)] += 1
        for name, found in (facts or {}).items():
            self._add_facts(name, found)
        for name, value in features.items():
            if facts and name in facts:
                continue
            if isinstance(value, float):
                self._numbers[name].append(value)
            elif isinstance(value, str):
                self._words[name][value] += 1

    def _add_facts(self, name: str, found: ValueFacts) -> None:
        if found.length is not None:
            self._lengths[name].append(found.length)
        if found.numbers:
            self._numbers[name].extend(found.numbers)
        if found.words:
            self._words[name].update(found.words)
        for image in found.images:
            self._column_images[name][_kind(image)] += 1

    def statistics(self) -> Statistics:
        """Return the statistics of the records so far."""
        return Statistics(
            records=self._records,
            labels=self._labels,
            target=NumberStatistics.of(self._targets) if self._targets else None,
            images=ImageStatistics.of(self._images) if self._images else None,
            numbers={_column(n): NumberStatistics.of(v) for n, v in self._numbers.items()},
            words={_column(name): _words(counts) for name, counts in self._words.items()},
            lengths={_column(n): NumberStatistics.of(v) for n, v in self._lengths.items()},
            column_images={
                _column(n): ImageStatistics.of(counts) for n, counts in self._column_images.items()
            },
        )


def merged(parts: Iterable[Statistics]) -> Statistics:
    """Return the statistics of all parts together."""
    result = Statistics()
    for part in parts:
        result.merge(part)
    return result


def spread_of(counts: Mapping[int, int]) -> Spread:
    """Return the distribution of counted values; the median is the lower of two."""
    middle, seen = (sum(counts.values()) - 1) // 2, 0
    ordered = sorted(counts)
    median = ordered[0]
    for value in ordered:
        median = value
        seen += counts[value]
        if seen > middle:
            break
    return Spread(minimum=ordered[0], median=median, maximum=ordered[-1])


def _kind(image: ImageFacts) -> tuple[int, int, ImageFormat, int]:
    return image.height, image.width, image.format, image.channels


def _column(feature: str) -> str:
    return feature.removeprefix(COLUMN_PREFIX)


def _words(counts: Counter[str]) -> WordStatistics:
    missing = counts.pop("", 0)
    return WordStatistics(counts=counts, missing=missing)


def _known(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]
