"""Metrics in prometheus-client's formats, created from counts at each scrape. Pure.

Requests are not counted in prometheus-client's own counters and histograms: an observation there
takes several times as long as in `series`.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from timonel.serving.telemetry.series import Histogram

Labels = tuple[str, ...]
_OPENMETRICS = "application/openmetrics-text"


class _Metrics(Collector):
    """Metrics sorted by name, without empty ones."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = sorted(metrics, key=lambda metric: metric.name)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return (metric for metric in self._metrics if metric.samples)


def encode(metrics: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """Return a page and its content type: OpenMetrics if accepted, else text.

    Args:
        metrics: The metrics on the page.
        accept: The header ``Accept`` of the request.
    """
    collector = _Metrics(metrics)
    kinds = (each.partition(";")[0].strip() for each in accept.split(","))
    if _OPENMETRICS in kinds:
        # Not `choose_encoder`: it fails at versions that are not numbers, and without this escaping
        # it writes colons in the names of samples as underscores.
        page = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            collector, escaping=openmetrics.ALLOWUTF8
        )
        return page, openmetrics.CONTENT_TYPE_LATEST
    # Newlines in labels are escaped, so only TYPE lines end like this.
    page = generate_latest(collector).replace(b" untyped\n", b" counter\n")
    return page, CONTENT_TYPE_PLAIN_0_0_4


def counter(
    name: str, documentation: str, labels: Sequence[str], rows: Iterable[tuple[Labels, float]]
) -> Metric:
    """Return a counter: the row sum for each set of labels.

    prometheus-client treats names that do not end in ``_total``, such as most of TensorFlow
    Serving's, as metrics of unknown type.

    Args:
        name: Its name.
        documentation: Its help text.
        labels: The names of its labels.
        rows: Label values, and a number.
    """
    is_plain = name.endswith("_total")
    family = CounterMetricFamily if is_plain else UnknownMetricFamily
    return _filled(family(name, documentation, labels=labels), rows)


def gauge(
    name: str, documentation: str, labels: Sequence[str], rows: Iterable[tuple[Labels, float]]
) -> Metric:
    """Return a gauge; see `counter`."""
    return _filled(GaugeMetricFamily(name, documentation, labels=labels), rows)


def _filled(
    metric: CounterMetricFamily | GaugeMetricFamily | UnknownMetricFamily,
    rows: Iterable[tuple[Labels, float]],
) -> Metric:
    sums: collections.defaultdict[Labels, float] = collections.defaultdict(float)
    for key, value in rows:
        sums[key] += value
    for key in sorted(sums):
        metric.add_metric(key, sums[key])
    return metric


def histogram(
    name: str,
    documentation: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Labels, Histogram]],
    *,
    unit: float = 1.0,
    bounds: Sequence[float] = (),
) -> Metric:
    """Return a histogram: the row sum for each set of labels.

    Args:
        name: Its name.
        documentation: Its help text.
        labels: The names of its labels.
        rows: Label values, and a histogram.
        unit: Factor for values and limits of the rows.
        bounds: Its limits, if fewer than those of the rows.
    """
    sums: dict[Labels, Histogram] = {}
    for key, each in rows:
        held = sums.get(key)
        if held is None:
            held = sums[key] = Histogram(bounds or each.bounds)
        held.add(each)
    metric = HistogramMetricFamily(name, documentation, labels=labels)
    for key, held in sorted(sums.items()):
        # Six digits, as in TensorFlow Serving: limits are labels, which must be equal.
        limits = (*(f"{bound * unit:g}" for bound in held.bounds), "+Inf")
        buckets = list(zip(limits, itertools.accumulate(held.counts), strict=True))
        metric.add_metric(key, buckets, held.total * unit)
    return metric
