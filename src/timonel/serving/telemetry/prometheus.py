"""Metrics page in Prometheus' text format, created from counts at each scrape.

Requests are not counted in prometheus-client's own counters and histograms: an observation there
takes several times as long as in `series`.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from timonel.serving.asgi import Request, Response, Route, at
from timonel.serving.telemetry.counts import Histogram

Labels = tuple[str, ...]
_METHODS = ("GET", "HEAD")
_TEXT = b"text/plain"


def metrics_route(page: Callable[[], bytes], path: str, pool: Executor) -> Route:
    """Return the route of the metrics page, which a thread of the pool renders in milliseconds."""

    async def answer(request: Request) -> Response:
        if request.scope["method"] not in _METHODS:
            allowed = ((b"allow", ", ".join(_METHODS).encode()),)
            return Response(405, b"Use GET.", _TEXT, allowed)
        if request.target != path:
            # TensorFlow Serving compares the path including its query.
            text = f"Unexpected path: {request.target}. Should be {path}"
            return Response(400, text.encode(errors="replace"), _TEXT)
        body = await asyncio.get_running_loop().run_in_executor(pool, page)
        return Response(200, body, CONTENT_TYPE_PLAIN_0_0_4.encode())

    return Route(frozenset(), at(re.escape(path)), answer)


class _Metrics(Collector):
    """Metrics sorted by name, without empty ones."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = sorted(metrics, key=lambda metric: metric.name)

    def collect(self) -> Iterable[Metric]:
        return (metric for metric in self._metrics if metric.samples)


def encode(metrics: Iterable[Metric]) -> bytes:
    """Return a page of metrics."""
    # Newlines in labels are escaped, so only TYPE lines end like this.
    return generate_latest(_Metrics(metrics)).replace(b" untyped\n", b" counter\n")


def counter(
    name: str, documentation: str, labels: Sequence[str], rows: Iterable[tuple[Labels, float]]
) -> Metric:
    """Return a counter: the row sum for each set of labels.

    prometheus-client treats names that do not end in ``_total``, such as most of TensorFlow
    Serving's, as metrics of unknown type.
    """
    is_plain = name.endswith("_total")
    family = CounterMetricFamily if is_plain else UnknownMetricFamily
    return _filled(family(name, documentation, labels=labels), rows)


def gauge(
    name: str, documentation: str, labels: Sequence[str], rows: Iterable[tuple[Labels, float]]
) -> Metric:
    """Return a gauge: the row sum for each set of labels."""
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
        unit: Factor for values and limits of the rows.
        bounds: The metric's limits, if fewer than those of the rows.
    """
    sums: dict[Labels, Histogram] = {}
    for key, each in rows:
        if key not in sums:
            sums[key] = Histogram(bounds or each.bounds)
        sums[key].add(each)
    metric = HistogramMetricFamily(name, documentation, labels=labels)
    for key, total in sorted(sums.items()):
        # Six digits, as in TensorFlow Serving: limits are labels, which must be equal.
        limits = (*(f"{bound * unit:g}" for bound in total.bounds), "+Inf")
        buckets = list(zip(limits, itertools.accumulate(total.counts), strict=True))
        metric.add_metric(key, buckets, total.total * unit)
    return metric
