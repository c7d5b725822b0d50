"""Metrics page in Prometheus' text format, created from counts at each scrape.

Requests are not counted in prometheus-client's own counters and histograms: an observation there
takes several times as long as in `series`.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
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

from timonel.serving.asgi import App, Receive, Scope, Send
from timonel.serving.telemetry.counts import Histogram

Labels = tuple[str, ...]
_METHODS = ("GET", "HEAD")


class MetricsApp:
    """ASGI application that serves metrics on one path.

    Methods other than GET and HEAD are rejected: access control lets OPTIONS pass, as browsers send
    it without a key.

    Args:
        app: Handles requests for other paths.
        page: Renders the page, which takes milliseconds; see `encode`.
        path: The path of the page.
        pool: Thread pool that renders the page.
    """

    def __init__(self, app: App, page: Callable[[], bytes], path: str, pool: Executor) -> None:
        self._app = app
        self._page = page
        self._path = path
        self._pool = pool

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle a request."""
        if scope["type"] != "http" or scope["path"] != self._path:
            return self._app(scope, receive, send)
        return self._send(scope, send)

    async def _send(self, scope: Scope, send: Send) -> None:
        allowed: list[tuple[bytes, bytes]] = []
        if scope["method"] not in _METHODS:
            body, status, content_type = b"Use GET.", 405, "text/plain"
            allowed = [(b"allow", ", ".join(_METHODS).encode())]
        elif query := scope["query_string"]:
            # TensorFlow Serving compares the path including its query.
            target = f"{self._path}?{query.decode('latin-1')}"
            body = f"Unexpected path: {target}. Should be {self._path}".encode()
            status, content_type = 400, "text/plain"
        else:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(self._pool, self._page)
            status, content_type = 200, CONTENT_TYPE_PLAIN_0_0_4
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
            *allowed,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )


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
        name: The metric's name.
        documentation: The help text.
        labels: The names of the labels.
        rows: Label values, and a histogram.
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
