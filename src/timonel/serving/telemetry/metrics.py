"""Metric families of a server: TensorFlow Serving's names and timonel's. Pure.

TensorFlow Serving's names are for its existing dashboards, in microseconds. It counts only some of
its calls: Predict, Classify and Regress over gRPC, all over REST; examples for MultiInference only.
Calls of the Open Inference Protocol are counted in the same way.

timonel's names distinguish versions and signatures, in seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from timonel.serving.status import Code
from timonel.serving.telemetry.counts import (
    ROWS,
    STAGES,
    BatchKey,
    Concurrency,
    Histogram,
    PathKey,
    RequestKey,
    ServerCounts,
)
from timonel.serving.telemetry.prometheus import Labels, counter, gauge, histogram

_TFS = ":tensorflow:serving:"
_TFS_BATCHING = f"{_TFS}batching_session:"
_TFS_LOADING = ":tensorflow:cc:saved_model:"
_TFS_GRPC_APIS = frozenset({"Predict", "Classify", "Regress", "ModelInfer"})
_TFS_ROWS = ROWS[:14]
_SECONDS = 1e-6
_SIGNATURE = ("model", "version", "signature")
_REQUEST = (*_SIGNATURE, "api", "entrypoint", "code")
_PATH = ("model", "version", "code")


def tensorflow_serving_families(counts: ServerCounts) -> Iterator[Metric]:
    """Yield the metrics under TensorFlow Serving's names."""
    requests = [
        (key, value)
        for key, value in counts.requests.items()
        if key.entrypoint == "REST" or key.api in _TFS_GRPC_APIS
    ]
    succeeded = [(key, value) for key, value in requests if key.code is Code.OK]
    yield counter(
        f"{_TFS}request_count",
        "Answered requests.",
        ("model_name", "status"),
        (((k.model, k.code.name), v.whole.count) for k, v in requests),
    )
    yield histogram(
        f"{_TFS}request_latency",
        "Duration of a successful request in microseconds.",
        ("model_name", "API", "entrypoint"),
        (((k.model, k.api, k.entrypoint), v.whole) for k, v in succeeded),
    )
    yield histogram(
        f"{_TFS}runtime_latency",
        "Duration of a request's computation in microseconds, with the wait for a batch.",
        ("model_name", "API", "runtime"),
        (((k.model, k.api, "TF1"), v.run) for k, v in succeeded if k.signature),
    )
    yield counter(
        f"{_TFS}request_log_count",
        "Requests sampled for the request log.",
        ("model_name", "status_code"),
        counts.logged.items(),
    )
    examples = [
        ((key.model,), value.rows)
        for key, value in counts.requests.items()
        if key.api == "MultiInference" and value.rows.total
    ]
    yield histogram(f"{_TFS}request_example_counts", "Examples per request.", ("model",), examples)
    yield counter(
        f"{_TFS}request_example_count_total",
        "Examples of all requests.",
        ("model",),
        ((key, rows.total) for key, rows in examples),
    )
    yield from _tfs_batches(counts)
    yield from _tfs_loads(counts)


def timonel_families(counts: ServerCounts) -> Iterator[Metric]:
    """Yield the metrics under timonel's names."""
    yield from _requests(counts)
    yield from _concurrency(counts.concurrency)
    yield gauge(
        "timonel_requests_queued",
        "Requests that wait to be computed.",
        (),
        [((), counts.queued)],
    )
    yield from _batches(counts)
    yield from _loads(counts)
    yield gauge(
        "timonel_versions",
        "Current versions by state.",
        ("model", "state"),
        counts.versions.items(),
    )
    yield gauge(
        "timonel_memory_bytes",
        "Memory of the server and of its child processes.",
        ("process",),
        (((kind,), size) for kind, size in counts.memory.items()),
    )
    yield counter(
        "timonel_cpu_seconds_total",
        "CPU time of the server and of its child processes.",
        ("process",),
        (((kind,), seconds) for kind, seconds in counts.cpu_s.items()),
    )


def _tfs_batches(counts: ServerCounts) -> Iterator[Metric]:
    batches = list(counts.batches.values())
    batched = [
        ((), value.rows)
        for key, value in counts.requests.items()
        if key.version is not None
        and BatchKey(key.model, key.version, key.signature) in counts.batches
    ]
    yield histogram(
        f"{_TFS_BATCHING}queuing_latency",
        "Microseconds that a request waited for its batch.",
        (),
        (((), batch.queue) for batch in batches),
    )
    yield counter(
        f"{_TFS_BATCHING}wrapped_run_count",
        "Computed batches.",
        (),
        (((), batch.rows.count) for batch in batches),
    )
    yield histogram(
        f"{_TFS_BATCHING}input_batch_size",
        "Rows per request to a model with batching.",
        (),
        batched,
        bounds=_TFS_ROWS,
    )
    yield histogram(
        f"{_TFS_BATCHING}processed_batch_size",
        "Rows per batch without padding.",
        (),
        (((), batch.rows) for batch in batches),
        bounds=_TFS_ROWS,
    )
    yield histogram(
        f"{_TFS_BATCHING}padding_size",
        "Padding rows per batch.",
        ("execution_batch_size",),
        (((str(size),), rows) for batch in batches for size, rows in list(batch.padded.items())),
        bounds=_TFS_ROWS,
    )


def _tfs_loads(counts: ServerCounts) -> Iterator[Metric]:
    loads = counts.loads.items()
    yield counter(
        f"{_TFS_LOADING}load_attempt_count",
        "Attempts to load a version.",
        ("model_path", "status"),
        (((k.path, "success" if k.code is Code.OK else "fail"), v.took.count) for k, v in loads),
    )
    yield counter(
        f"{_TFS_LOADING}load_latency",
        "Microseconds of successful loads.",
        ("model_path",),
        (((k.path,), v.took.total) for k, v in loads if k.code is Code.OK),
    )
    warmups = [((k.path, k.code.name), value) for k, value in counts.warmups.items()]
    yield histogram(
        f"{_TFS}model_warmup_latency",
        "Duration of a warm-up in microseconds.",
        ("model_path", "status"),
        ((key, value.took) for key, value in warmups),
    )
    yield counter(
        f"{_TFS}model_warmup_records_read",
        "Records read for warm-ups.",
        ("model_path", "status"),
        ((key, value.records) for key, value in warmups),
    )


def _requests(counts: ServerCounts) -> Iterator[Metric]:
    requests = [
        ((*_signature(key), key.api.lower(), key.entrypoint.lower(), key.code.name), value)
        for key, value in counts.requests.items()
    ]
    yield counter(
        "timonel_requests_total",
        "Answered requests.",
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
        "Rows per request.",
        _SIGNATURE,
        ((_signature(key), v.rows) for key, v in counts.requests.items() if key.signature),
    )


def _concurrency(concurrency: Concurrency) -> Iterator[Metric]:
    yield gauge(
        "timonel_requests_in_flight",
        "Requests to models that have arrived and are not answered.",
        (),
        [((), concurrency.in_flight)],
    )
    yield counter(
        "timonel_request_concurrency_seconds_total",
        "Requests in flight, integrated over time; its rate is their average.",
        (),
        [((), concurrency.request_s)],
    )


def _stages(counts: ServerCounts) -> Iterator[tuple[Labels, Histogram]]:
    for key, value in counts.requests.items():
        if key.signature:
            labels = (*_signature(key), key.entrypoint.lower())
            for stage, taken in zip(STAGES, value.stages, strict=True):
                yield (*labels, stage), taken


def _batches(counts: ServerCounts) -> Iterator[Metric]:
    batches = [(_signature(key), value) for key, value in counts.batches.items()]
    yield histogram(
        "timonel_batch_rows",
        "Rows per batch without padding.",
        _SIGNATURE,
        ((key, value.rows) for key, value in batches),
    )
    yield counter(
        "timonel_batch_padded_rows_total",
        "Padding rows of batches.",
        _SIGNATURE,
        ((key, sum(p.total for p in list(v.padded.values()))) for key, v in batches),
    )
    yield histogram(
        "timonel_batch_queue_seconds",
        "Time that a request waited for its batch.",
        _SIGNATURE,
        ((key, value.queue) for key, value in batches),
        unit=_SECONDS,
    )
    yield histogram(
        "timonel_batch_compute_seconds",
        "Time that the model took for a batch.",
        _SIGNATURE,
        ((key, value.compute) for key, value in batches),
        unit=_SECONDS,
    )


def _loads(counts: ServerCounts) -> Iterator[Metric]:
    yield histogram(
        "timonel_load_seconds",
        "Time to load a version.",
        _PATH,
        ((_path(key), value.took) for key, value in counts.loads.items()),
        unit=_SECONDS,
    )


def _signature(key: RequestKey | BatchKey) -> Labels:
    return key.model, "" if key.version is None else str(key.version), key.signature


def _path(key: PathKey) -> Labels:
    return key.model, str(key.version), key.code.name
