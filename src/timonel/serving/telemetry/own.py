"""Metrics under timonel's names, by version and signature. Pure.

Units are seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from timonel.serving.inference.observation import STAGES
from timonel.serving.telemetry.prometheus import Labels, counter, gauge, histogram
from timonel.serving.telemetry.series import Counts, Histogram, PathKey, RequestKey

_SECONDS = 1e-6
_SIGNATURE = ("model", "version", "signature")
_REQUEST = (*_SIGNATURE, "api", "entrypoint", "code")
_PATH = ("model", "version", "code")


def families(counts: Counts) -> Iterator[Metric]:
    """Yield timonel's metrics."""
    yield from _requests(counts)
    yield from _batches(counts)
    yield from _loading(counts)
    yield counter(
        "timonel_request_log_records_total",
        "Requests that were sampled for the log.",
        ("model", "status"),
        counts.logged.items(),
    )
    yield gauge(
        "timonel_versions",
        "Versions now, by their state.",
        ("model", "state"),
        counts.versions.items(),
    )
    yield gauge(
        "timonel_memory_bytes",
        "Memory of the server and of the processes it has started.",
        ("process",),
        (((kind,), size) for kind, size in counts.memory.items()),
    )


def _requests(counts: Counts) -> Iterator[Metric]:
    requests = [(_request(key), value) for key, value in counts.requests.items()]
    signed = [(_signature(key), v) for key, v in counts.requests.items() if key.signature]
    yield counter(
        "timonel_requests_total",
        "Requests that were answered.",
        _REQUEST,
        ((key, value.whole.count) for key, value in requests),
    )
    yield histogram(
        "timonel_request_seconds",
        "Time from the last byte of a request to its answer.",
        _REQUEST,
        ((key, value.whole) for key, value in requests),
        unit=_SECONDS,
    )
    yield histogram(
        "timonel_request_stage_seconds",
        "Time of each stage of a request.",
        (*_SIGNATURE, "entrypoint", "stage"),
        _stages(counts),
        unit=_SECONDS,
    )
    yield histogram(
        "timonel_request_rows",
        "Rows of a request.",
        _SIGNATURE,
        ((key, value.rows) for key, value in signed),
    )


def _batches(counts: Counts) -> Iterator[Metric]:
    batches = [((k.model, str(k.version), k.signature), v) for k, v in counts.batches.items()]
    yield histogram(
        "timonel_batch_rows",
        "Rows of a batch, without those that were added.",
        _SIGNATURE,
        ((key, value.rows) for key, value in batches),
    )
    yield counter(
        "timonel_batch_padded_rows_total",
        "Rows that were added to batches.",
        _SIGNATURE,
        ((key, sum(p.total for p in list(v.padded.values()))) for key, v in batches),
    )
    yield histogram(
        "timonel_batch_queue_seconds",
        "Time that a request of a batch waited.",
        _SIGNATURE,
        ((key, value.queue) for key, value in batches),
        unit=_SECONDS,
    )
    yield histogram(
        "timonel_batch_compute_seconds",
        "Time that a model took for a batch.",
        _SIGNATURE,
        ((key, value.compute) for key, value in batches),
        unit=_SECONDS,
    )


def _loading(counts: Counts) -> Iterator[Metric]:
    yield histogram(
        "timonel_load_seconds",
        "Time to load a version.",
        _PATH,
        ((_path(key), value.took) for key, value in counts.loads.items()),
        unit=_SECONDS,
    )
    yield histogram(
        "timonel_warmup_seconds",
        "Time to warm a version up.",
        _PATH,
        ((_path(key), value.took) for key, value in counts.warmups.items()),
        unit=_SECONDS,
    )
    yield counter(
        "timonel_warmup_records_total",
        "Records that were read to warm versions up.",
        _PATH,
        ((_path(key), value.records) for key, value in counts.warmups.items()),
    )


def _signature(key: RequestKey) -> Labels:
    return key.model, "" if key.version is None else str(key.version), key.signature


def _request(key: RequestKey) -> Labels:
    return *_signature(key), key.api.lower(), key.entrypoint.lower(), key.code.name


def _path(key: PathKey) -> Labels:
    return key.model, str(key.version), key.code.name


def _stages(counts: Counts) -> Iterator[tuple[Labels, Histogram]]:
    for key, value in counts.requests.items():
        if key.signature:
            labels = (*_signature(key), key.entrypoint.lower())
            for stage, taken in zip(STAGES, value.stages, strict=True):
                yield (*labels, stage), taken
