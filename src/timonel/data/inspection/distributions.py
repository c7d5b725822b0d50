"""Distributions of numbers and words, in bounded memory and independent of order."""

from __future__ import annotations

import datetime as dt
import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timonel.data.statistics import NumberStatistics
from timonel.styles import plain

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

MAX_CELLS = 2048
"""Limit on the cells of a histogram."""
MAX_WORDS = 100_000
"""Limit on distinct words that are counted."""
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_MANTISSA_BITS = 52
_BUFFERED = 1 << 16
_COMMON = 20
_MIN_BINS, _MAX_BINS = 10, 30
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Numbers:
    """Distribution of numbers: moments, and a histogram with at most 2,048 cells.

    A cell has all values that are equal in sign, exponent and the first bits of the mantissa. All
    bits count as long as there are few distinct values, so the histogram is exact; then bits are
    dropped until the cells suffice. The histogram depends on the values, but not on their order.
    NaN and infinite values count as missing. Dates are seconds since 1970 in UTC.
    """

    def __init__(self, *, is_date: bool = False) -> None:
        self.is_date = is_date
        self._missing = 0
        self._moments = NumberStatistics()
        self._buffer = array("d")
        self._bits = _MANTISSA_BITS
        self._values: Floats = np.empty(0)
        self._counts: Counts = np.empty(0, np.int64)

    def add(self, values: Sequence[float]) -> None:
        """Add values."""
        self._buffer.extend(values)
        if len(self._buffer) >= _BUFFERED:
            self._fold()

    @property
    def moments(self) -> NumberStatistics:
        """Count, mean, standard deviation, minimum and maximum."""
        self._fold()
        return self._moments

    @property
    def count(self) -> int:
        """Number of values that are not missing."""
        return self.moments.count

    @property
    def missing(self) -> int:
        """Number of missing values."""
        self._fold()
        return self._missing

    def add_missing(self, count: int) -> None:
        """Add missing values."""
        self._missing += count

    def show(self, value: float) -> str:
        """Return one of the numbers as text for people."""
        if self.is_date:
            return as_date(value)
        # No comma in four digits, which may be a year.
        return f"{value:.0f}" if 1000 <= abs(value) < 9999.5 else plain(value)

    @property
    def bits(self) -> int:
        """Bits of the mantissa that tell cells apart; 52 if the histogram is exact."""
        self._fold()
        return self._bits

    def cells(self, bits: int = _MANTISSA_BITS) -> tuple[Floats, Counts]:
        """Return the histogram: the values of the cells [N], ascending, and their counts [N]."""
        self._fold()
        if bits >= self._bits:
            return self._values, self._counts
        return _grouped(_truncated(self._values, bits), self._counts)

    def with_cells(self, change: Callable[[Floats], Floats]) -> Numbers:
        """Return a copy with other values of the cells [N]; its moments stay the same."""
        values, counts = self.cells()
        result = Numbers(is_date=self.is_date)
        result._moments, result._missing = self._moments, self._missing
        result._values, result._counts = _grouped(change(values), counts)
        return result

    def quantiles(self, fractions: Sequence[float]) -> list[float]:
        """Return the values below which these fractions of the values are; none without values."""
        values, counts = self.cells()
        if not len(values):
            return []
        places = np.searchsorted(np.cumsum(counts), np.asarray(fractions) * counts.sum())
        found: list[float] = values[np.minimum(places, len(values) - 1)].tolist()
        return found

    def histogram(self, edges: Floats) -> Counts:
        """Return the number of values between neighbouring edges [N + 1] as [N]."""
        values, counts = self.cells()
        return np.histogram(values, edges, weights=counts)[0].astype(np.int64)

    def summary(self) -> dict[str, Any]:
        """Return the distribution as JSON values."""
        moments = self.moments
        edges = bin_edges([self])
        return {
            "type": "number",
            "count": moments.count,
            "missing": self.missing,
            "mean": moments.mean,
            "std": moments.std,
            "minimum": moments.minimum,
            "maximum": moments.maximum,
            "quantiles": dict(zip(map(str, QUANTILES), self.quantiles(QUANTILES), strict=False)),
            "histogram": {"edges": edges.tolist(), "counts": self.histogram(edges).tolist()},
        }

    def _fold(self) -> None:
        """Move the buffered values into the histogram."""
        if not self._buffer:
            return
        new = np.frombuffer(self._buffer, np.float64)
        self._buffer = array("d")
        known = new[np.isfinite(new)] + 0.0  # -0.0 becomes 0.0
        self._missing += len(new) - len(known)
        self._moments.merge(NumberStatistics.of(array("d", known.tobytes())))
        values = np.concatenate([self._values, _truncated(known, self._bits)])
        counts = np.concatenate([self._counts, np.ones(len(known), np.int64)])
        values, counts = _grouped(values, counts)
        while _distinct(_truncated(values, self._bits)) > MAX_CELLS:
            self._bits -= 1
        self._values, self._counts = _grouped(_truncated(values, self._bits), counts)


class Words:
    """Distribution of words; an empty word is missing.

    Beyond 100,000 distinct words, only their number is kept: they are identifiers or free text.
    """

    def __init__(self) -> None:
        self.count = 0
        self.missing = 0
        self.counts: Counter[str] | None = Counter()

    def add(self, values: Sequence[str]) -> None:
        """Add words."""
        known = [value for value in values if value]
        self.count += len(known)
        self.missing += len(values) - len(known)
        if self.counts is not None:
            self.counts.update(known)
            if len(self.counts) > MAX_WORDS:
                self.counts = None

    def add_missing(self, count: int) -> None:
        """Add missing values."""
        self.missing += count

    def common(self, limit: int) -> list[tuple[str, int]]:
        """Return the most frequent words and their counts, equal counts by word."""
        counts: Mapping[str, int] = self.counts or {}
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]

    def summary(self) -> dict[str, Any]:
        """Return the distribution as JSON values."""
        return {
            "type": "words",
            "count": self.count,
            "missing": self.missing,
            "distinct": None if self.counts is None else len(self.counts),
            "common": dict(self.common(_COMMON)),
        }


Distribution = Numbers | Words


def as_date(seconds: float) -> str:
    """Return the day of seconds since 1970 in UTC."""
    return f"{_EPOCH + dt.timedelta(seconds=seconds):%Y-%m-%d}"


def bin_edges(parts: Sequence[Numbers]) -> Floats:
    """Return edges of equal bins for the values of all parts; empty without values.

    There are about 10 to 30 bins, by Rice's rule. Bins of whole numbers have whole widths. Values
    farther from the quartiles than three times the distance of these are outside, so that outliers
    do not leave most bins empty.
    """
    bits = min(part.bits for part in parts)
    cells = [part.cells(bits) for part in parts]
    values, counts = _grouped(*map(np.concatenate, zip(*cells, strict=True)))
    if not len(values):
        return np.empty(0)
    bins = min(max(_MIN_BINS, math.ceil(2 * float(counts.sum()) ** (1 / 3))), _MAX_BINS)
    low, high = values[0], max(part.moments.maximum or values[-1] for part in parts if part.count)
    places = np.searchsorted(np.cumsum(counts), np.array([0.25, 0.75]) * counts.sum())
    first, third = values[np.minimum(places, len(values) - 1)]
    spread = 3 * (third - first)
    if spread > 0:
        low, high = max(low, first - spread), min(high, third + spread)
    if np.array_equal(values, np.round(values)):
        low, high = np.ceil(low), np.floor(high)
        width = -(-(high - low + 1) // bins)
        return np.arange(low, high + width + 1, width) - 0.5
    return np.linspace(low, high if high > low else low + 1, bins + 1)


def _truncated(values: Floats, bits: int) -> Floats:
    shift = np.int64(_MANTISSA_BITS - bits)
    return ((values.view(np.int64) >> shift) << shift).view(np.float64)


def _distinct(values: Floats) -> int:
    return 1 + int(np.count_nonzero(np.diff(values))) if len(values) else 0


def _grouped(values: Floats, counts: Counts) -> tuple[Floats, Counts]:
    """Return the distinct values, ascending, and the sum of the counts of each."""
    distinct, places = np.unique(values, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, places, counts)
    return distinct, sums
