"""What was counted, under the names that dashboards for TensorFlow Serving ask for. Pure.

TensorFlow Serving counts some of its calls only: over gRPC Predict, Classify and Regress, over
REST all; examples for MultiInference alone. Those of the Open Inference Protocol are counted in the
same way.
"""

from __future__ import annotations

from collections.abc import Iterable

from timonel.serving.monitoring.exposition import Family, Histogram, Labels, labels, summed
from timonel.serving.monitoring.series import ROWS, BatchKey, RequestKey, Requests
from timonel.serving.monitoring.snapshot import Snapshot
from timonel.serving.status import Code

_PREFIX = "/tensorflow/serving/"
_BATCHING = f"{_PREFIX}batching_session/"
_LOADING = "/tensorflow/cc/saved_model/"
_COUNTED_OVER_GRPC = frozenset({"Predict", "Classify", "Regress", "ModelInfer", "ModelStreamInfer"})
_BATCH_ROWS = ROWS[:14]

_Rows = Iterable[tuple[Labels, float | Histogram]]


def families(snapshot: Snapshot) -> list[Family]:
    """Return TensorFlow Serving's metrics."""
    counted = [(key, value) for key, value in snapshot.requests.items() if _is_counted(key)]
    inferred = [(key, v) for key, v in snapshot.requests.items() if key.api == "MultiInference"]
    return [
        Family(f"{_PREFIX}request_count", "counter", summed(_request_count(counted))),
        Family(f"{_PREFIX}request_latency", "histogram", summed(_request_latency(counted))),
        Family(f"{_PREFIX}runtime_latency", "histogram", summed(_runtime_latency(counted))),
        Family(f"{_PREFIX}request_example_counts", "histogram", summed(_examples(inferred))),
        Family(
            f"{_PREFIX}request_example_count_total",
            "counter",
            summed((labels(model=k.model), v.rows.total) for k, v in inferred if v.rows.total),
        ),
        Family(f"{_PREFIX}request_log_count", "counter", summed(_logged(snapshot))),
        *_batching(snapshot),
        *_loading(snapshot),
    ]


def _is_counted(key: RequestKey) -> bool:
    return key.entrypoint == "REST" or key.api in _COUNTED_OVER_GRPC


def _request_count(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        yield labels(model_name=key.model, status=key.code.name), sum(value.whole.counts)


def _request_latency(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        if key.code is Code.OK:
            yield (
                labels(model_name=key.model, API=key.api, entrypoint=key.entrypoint),
                value.whole,
            )


def _runtime_latency(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        if key.code is Code.OK and key.signature:
            # The wait for a batch is inside the runtime there.
            yield labels(model_name=key.model, API=key.api, runtime="TF1"), value.run


def _examples(requests: Iterable[tuple[RequestKey, Requests]]) -> _Rows:
    for key, value in requests:
        if value.rows.total:
            yield labels(model=key.model), value.rows


def _logged(snapshot: Snapshot) -> _Rows:
    for (model, status), count in snapshot.logged.items():
        yield labels(model_name=model, status_code=status), count


def _batching(snapshot: Snapshot) -> list[Family]:
    batches = list(snapshot.batches.values())
    count = sum(sum(batch.rows.counts) for batch in batches)
    tasks = [v.rows for k, v in snapshot.requests.items() if _of_batch(k) in snapshot.batches]
    return [
        Family(f"{_BATCHING}queuing_latency", "histogram", summed(((), b.queue) for b in batches)),
        Family(
            f"{_BATCHING}wrapped_run_count", "counter", summed([((), count)] if batches else [])
        ),
        Family(
            f"{_BATCHING}input_batch_size",
            "histogram",
            summed((((), rows) for rows in tasks), _BATCH_ROWS),
        ),
        Family(
            f"{_BATCHING}processed_batch_size",
            "histogram",
            summed((((), b.rows) for b in batches), _BATCH_ROWS),
        ),
        Family(
            f"{_BATCHING}padding_size",
            "histogram",
            summed(
                (
                    (labels(execution_batch_size=str(size)), padded)
                    for b in batches
                    for size, padded in b.padded.items()
                ),
                _BATCH_ROWS,
            ),
        ),
    ]


def _of_batch(key: RequestKey) -> BatchKey | None:
    return None if key.version is None else BatchKey(key.model, key.version, key.signature)


def _loading(snapshot: Snapshot) -> list[Family]:
    return [
        Family(
            f"{_LOADING}load_attempt_count",
            "counter",
            summed(
                (
                    labels(model_path=k.path, status="success" if k.code is Code.OK else "fail"),
                    sum(v.took.counts),
                )
                for k, v in snapshot.loads.items()
            ),
        ),
        Family(
            f"{_LOADING}load_latency",
            "counter",
            summed(
                (labels(model_path=k.path), v.took.total)
                for k, v in snapshot.loads.items()
                if k.code is Code.OK
            ),
        ),
        Family(
            f"{_PREFIX}model_warmup_latency",
            "histogram",
            summed(
                (labels(model_path=k.path, status=k.code.name), v.took)
                for k, v in snapshot.warmups.items()
            ),
        ),
        Family(
            f"{_PREFIX}model_warmup_records_read",
            "counter",
            summed(
                (labels(model_path=k.path, status=k.code.name), v.records)
                for k, v in snapshot.warmups.items()
            ),
        ),
    ]
