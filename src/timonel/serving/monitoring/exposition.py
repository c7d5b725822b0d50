"""Prometheus' text format, as TensorFlow Serving writes it: ``# TYPE`` lines and no help. Pure.

prometheus-client is not used: it appends ``_total`` to the names of counters, always writes help,
and prints limits of buckets otherwise, all of which dashboards for TensorFlow Serving would miss;
and an observation costs it several times what it costs here.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = b"text/plain"
Labels = tuple[tuple[str, str], ...]

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")
_NO_LABEL = re.compile(r"[^a-zA-Z0-9]")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def exponential(scale: float, growth: float, count: int) -> tuple[float, ...]:
    """Return ``count`` limits of buckets; one without a limit follows them."""
    return tuple(scale * growth**power for power in range(count))


MICROSECONDS = exponential(10, 1.8, 33)
"""TensorFlow Serving's limits for latencies: from 10 us to about 25 minutes."""


class Histogram:
    """Counts of values by size. Not thread-safe: its owner has a lock.

    Args:
        bounds: The inclusive upper limits of the buckets, rising.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Count all that another one has; its limits must be the same, or these and more."""
        last = len(self.counts) - 1
        for place, count in enumerate(other.counts):
            self.counts[min(place, last)] += count
        self.total += other.total

    def copy(self) -> Histogram:
        """Return one with the same counts."""
        copied = Histogram(self.bounds)
        copied.add(self)
        return copied


@dataclass(frozen=True)
class Sample:
    """One line, or for a histogram one block: the value of a metric under its labels."""

    labels: Labels
    value: float | Histogram


@dataclass(frozen=True)
class Family:
    """A metric.

    Args:
        name: Its name with slashes, as TensorFlow Serving's, or ready for Prometheus.
        kind: What Prometheus is told it is.
        samples: Its values.
        unit: What values of a histogram and its limits are multiplied by.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    samples: Sequence[Sample] = field(default_factory=tuple)
    unit: float = 1.0


def labels(**values: str) -> Labels:
    """Return labels in the order they are written."""
    return tuple(values.items())


def expose(families: Iterable[Family]) -> bytes:
    """Return the page a Prometheus server reads; metrics without a value are left out."""
    lines: list[str] = []
    for family in sorted(families, key=lambda family: family.name):
        if family.samples:
            lines += _lines(family)
    return ("\n".join(lines) + "\n").encode()


def _lines(family: Family) -> Iterable[str]:
    name = metric_name(family.name)
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        written = _written(sample.labels)
        if isinstance(sample.value, Histogram):
            yield from _blocks(name, written, sample.value, family.unit)
        else:
            yield f"{name}{{{written}}} {_number(sample.value)}"


def _blocks(name: str, written: str, histogram: Histogram, unit: float) -> Iterable[str]:
    before = f"{name}_bucket{{{written}{',' if written else ''}"
    count = 0
    for bound, here in zip((*histogram.bounds, None), histogram.counts, strict=True):
        count += here
        # Six digits, as TensorFlow Serving writes limits: they are labels, which must be equal.
        limit = "+Inf" if bound is None else f"{bound * unit:g}"
        yield f'{before}le="{limit}"}} {count}'
    yield f"{name}_sum{{{written}}} {_number(histogram.total * unit)}"
    yield f"{name}_count{{{written}}} {count}"


def metric_name(name: str) -> str:
    """Return a metric's name as Prometheus may have it: ``/a/b`` is ``:a:b``."""
    name = _NO_NAME.sub(":", name)
    return f"_{name}" if name[:1].isdigit() else name


def _written(pairs: Labels) -> str:
    return ",".join(f'{_label(name)}="{value.translate(_ESCAPES)}"' for name, value in pairs)


def _label(name: str) -> str:
    name = _NO_LABEL.sub("_", name)
    return f"_{name}" if name[:1].isdigit() else name


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def summed(
    rows: Iterable[tuple[Labels, float | Histogram]], bounds: Sequence[float] = ()
) -> tuple[Sample, ...]:
    """Return one sample for each set of labels, with what belongs to it added up.

    Args:
        rows: Labels and values, all of them numbers or all of them histograms.
        bounds: The limits of a histogram that is the sum.
    """
    sums: dict[Labels, float | Histogram] = {}
    for key, value in rows:
        if isinstance(value, Histogram):
            held = sums.setdefault(key, Histogram(bounds or value.bounds))
            assert isinstance(held, Histogram), "a metric is of one kind"
            held.add(value)
        else:
            before = sums.get(key, 0)
            assert not isinstance(before, Histogram), "a metric is of one kind"
            sums[key] = before + value
    return tuple(Sample(key, sums[key]) for key in sorted(sums))
