"""What was counted, under timonel's names: by version and signature, in seconds and bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from timonel.serving.monitoring.exposition import Family, Histogram, Labels, labels, summed
from timonel.serving.monitoring.observation import STAGES
from timonel.serving.monitoring.series import BatchKey, PathKey, RequestKey, Requests
from timonel.serving.monitoring.snapshot import Snapshot

_SECONDS = 1e-6
_Rows = Iterable[tuple[Labels, float | Histogram]]


def families(snapshot: Snapshot) -> list[Family]:
    """Return timonel's metrics."""
    requests = snapshot.requests.items()
    batches = [(_batch(key), value) for key, value in snapshot.batches.items()]
    return [
        Family("timonel_requests_total", "counter", summed(_counts(requests))),
        Family("timonel_request_seconds", "histogram", summed(_whole(requests)), _SECONDS),
        Family("timonel_request_stage_seconds", "histogram", summed(_stages(requests)), _SECONDS),
        Family("timonel_request_rows", "histogram", summed(_rows(requests))),
        Family("timonel_batch_rows", "histogram", summed((k, v.rows) for k, v in batches)),
        Family(
            "timonel_batch_padded_rows_total",
            "counter",
            summed((k, sum(p.total for p in v.padded.values())) for k, v in batches),
        ),
        Family(
            "timonel_batch_queue_seconds",
            "histogram",
            summed((k, v.queue) for k, v in batches),
            _SECONDS,
        ),
        Family(
            "timonel_batch_compute_seconds",
            "histogram",
            summed((k, v.compute) for k, v in batches),
            _SECONDS,
        ),
        Family(
            "timonel_load_seconds",
            "histogram",
            summed((_path(k), v.took) for k, v in snapshot.loads.items()),
            _SECONDS,
        ),
        Family(
            "timonel_warmup_seconds",
            "histogram",
            summed((_path(k), v.took) for k, v in snapshot.warmups.items()),
            _SECONDS,
        ),
        Family(
            "timonel_warmup_records_total",
            "counter",
            summed((_path(k), v.records) for k, v in snapshot.warmups.items()),
        ),
        Family("timonel_request_log_records_total", "counter", summed(_logged(snapshot))),
        Family(
            "timonel_versions",
            "gauge",
            summed(
                (labels(model=model, state=state), count)
                for (model, state), count in snapshot.versions.items()
            ),
        ),
        Family(
            "timonel_memory_bytes",
            "gauge",
            summed((labels(process=kind), size) for kind, size in snapshot.memory.items()),
        ),
    ]


def _request(key: RequestKey) -> Labels:
    return labels(
        model=key.model,
        version="" if key.version is None else str(key.version),
        signature=key.signature,
        api=key.api.lower(),
        entrypoint=key.entrypoint.lower(),
        code=key.code.name,
    )


def _batch(key: BatchKey) -> Labels:
    return labels(model=key.model, version=str(key.version), signature=key.signature)


def _path(key: PathKey) -> Labels:
    return labels(model=key.model, version=str(key.version), code=key.code.name)


def _counts(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        yield _request(key), sum(value.whole.counts)


def _whole(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        yield _request(key), value.whole


def _stages(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        if not key.signature:
            continue
        of_one = labels(
            model=key.model,
            version=str(key.version),
            signature=key.signature,
            entrypoint=key.entrypoint.lower(),
        )
        for stage, histogram in zip(STAGES, value.stages, strict=True):
            yield (*of_one, ("stage", stage)), histogram


def _rows(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        if key.signature:
            yield (
                labels(model=key.model, version=str(key.version), signature=key.signature),
                value.rows,
            )


def _logged(snapshot: Snapshot) -> _Rows:
    for (model, status), count in snapshot.logged.items():
        yield labels(model=model, status=status), count
