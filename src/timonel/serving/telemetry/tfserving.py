"""Metrics under TensorFlow Serving's names, for its existing dashboards. Pure.

TensorFlow Serving counts only some of its calls: Predict, Classify and Regress over gRPC, all over
REST; examples for MultiInference only. Calls of the Open Inference Protocol are counted in the same
way.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from timonel.serving.status import Code
from timonel.serving.telemetry.prometheus import counter, histogram
from timonel.serving.telemetry.series import ROWS, BatchKey, Counts, RequestKey

_PREFIX = ":tensorflow:serving:"
_BATCHING = f"{_PREFIX}batching_session:"
_LOADING = ":tensorflow:cc:saved_model:"
_COUNTED_OVER_GRPC = frozenset({"Predict", "Classify", "Regress", "ModelInfer"})
_BATCH_ROWS = ROWS[:14]


def families(counts: Counts) -> Iterator[Metric]:
    """Yield TensorFlow Serving's metrics."""
    yield from _requests(counts)
    yield from _examples(counts)
    yield from _batching(counts)
    yield from _loading(counts)
    yield from _warming(counts)


def _requests(counts: Counts) -> Iterator[Metric]:
    counted = [(key, value) for key, value in counts.requests.items() if _is_counted(key)]
    answered = [(key, value) for key, value in counted if key.code is Code.OK]
    yield counter(
        f"{_PREFIX}request_count",
        "Requests that were answered.",
        ("model_name", "status"),
        (((k.model, k.code.name), v.whole.count) for k, v in counted),
    )
    yield histogram(
        f"{_PREFIX}request_latency",
        "Microseconds of a request that succeeded.",
        ("model_name", "API", "entrypoint"),
        (((k.model, k.api, k.entrypoint), v.whole) for k, v in answered),
    )
    yield histogram(
        f"{_PREFIX}runtime_latency",
        "Microseconds that the model of a request took, with the wait for a batch.",
        ("model_name", "API", "runtime"),
        (((k.model, k.api, "TF1"), v.run) for k, v in answered if k.signature),
    )
    yield counter(
        f"{_PREFIX}request_log_count",
        "Requests that were sampled for the log.",
        ("model_name", "status_code"),
        counts.logged.items(),
    )


def _is_counted(key: RequestKey) -> bool:
    return key.entrypoint == "REST" or key.api in _COUNTED_OVER_GRPC


def _examples(counts: Counts) -> Iterator[Metric]:
    inferred = [
        ((key.model,), value.rows)
        for key, value in counts.requests.items()
        if key.api == "MultiInference" and value.rows.total
    ]
    yield histogram(
        f"{_PREFIX}request_example_counts", "Examples of a request.", ("model",), inferred
    )
    yield counter(
        f"{_PREFIX}request_example_count_total",
        "Examples of all requests.",
        ("model",),
        ((key, rows.total) for key, rows in inferred),
    )


def _batching(counts: Counts) -> Iterator[Metric]:
    batches = list(counts.batches.values())
    yield histogram(
        f"{_BATCHING}queuing_latency",
        "Microseconds that a request of a batch waited.",
        (),
        (((), batch.queue) for batch in batches),
    )
    yield counter(
        f"{_BATCHING}wrapped_run_count",
        "Batches that were computed.",
        (),
        (((), batch.rows.count) for batch in batches),
    )
    yield histogram(
        f"{_BATCHING}input_batch_size",
        "Rows of a request to a model that computes batches.",
        (),
        (((), v.rows) for k, v in counts.requests.items() if _of_batch(k) in counts.batches),
        bounds=_BATCH_ROWS,
    )
    yield histogram(
        f"{_BATCHING}processed_batch_size",
        "Rows of a batch, without those that were added.",
        (),
        (((), batch.rows) for batch in batches),
        bounds=_BATCH_ROWS,
    )
    yield histogram(
        f"{_BATCHING}padding_size",
        "Rows that were added to a batch.",
        ("execution_batch_size",),
        (
            ((str(size),), padded)
            for batch in batches
            for size, padded in list(batch.padded.items())
        ),
        bounds=_BATCH_ROWS,
    )


def _of_batch(key: RequestKey) -> BatchKey | None:
    return None if key.version is None else BatchKey(key.model, key.version, key.signature)


def _loading(counts: Counts) -> Iterator[Metric]:
    loads = counts.loads.items()
    yield counter(
        f"{_LOADING}load_attempt_count",
        "Attempts to load a version.",
        ("model_path", "status"),
        (((k.path, "success" if k.code is Code.OK else "fail"), v.took.count) for k, v in loads),
    )
    yield counter(
        f"{_LOADING}load_latency",
        "Microseconds of the loads that succeeded.",
        ("model_path",),
        (((k.path,), v.took.total) for k, v in loads if k.code is Code.OK),
    )


def _warming(counts: Counts) -> Iterator[Metric]:
    warmups = [((k.path, k.code.name), value) for k, value in counts.warmups.items()]
    yield histogram(
        f"{_PREFIX}model_warmup_latency",
        "Microseconds of a warm-up.",
        ("model_path", "status"),
        ((key, value.took) for key, value in warmups),
    )
    yield counter(
        f"{_PREFIX}model_warmup_records_read",
        "Records that were read to warm versions up.",
        ("model_path", "status"),
        ((key, value.records) for key, value in warmups),
    )
