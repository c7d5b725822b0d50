"""Batching, warm-up and metrics (6 to 8)."""

from __future__ import annotations

import pytest

from tests.serving.tfserving.checklist.harness import (
    HALF,
    error_of,
    post,
)

pytestmark = pytest.mark.soak


def test_batching_as_its_parameters_say(batching):
    assert post(batching, f"{HALF}:predict", {"instances": [[1.0], [2.0], [3.0]]}) == (
        200,
        {"predictions": [[2.5], [3.0], [3.5]]},
    )
    status, said = error_of(batching, f"{HALF}:predict", {"instances": [[1.0]] * 5})
    assert (status, said) == (400, "Task size 5 is larger than maximum input batch size 4")
    # TensorFlow Serving answers this without batching and refuses it with.
    assert post(batching, f"{HALF}:predict", {"inputs": 1.0}) == (200, {"outputs": 2.5})


def test_metrics_and_warm_up_by_their_names(batching):
    post(batching, f"{HALF}:predict", {"instances": [[1.0]]})
    status, headers, body = batching.ask("GET", "/m")
    text = body.decode()
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert batching.ask("POST", "/m")[0] == 405
    assert batching.ask("GET", "/m?x=1")[0] == 400
    assert "# TYPE :tensorflow:serving:request_count counter\n" in text
    for line in (
        f':tensorflow:serving:request_count{{model_name="{HALF}",status="OK"}}',
        (
            ':tensorflow:serving:request_latency_count{API="predict",entrypoint="REST",'
            f'model_name="{HALF}"}}'
        ),
        ":tensorflow:serving:model_warmup_records_read{",
        ":tensorflow:serving:model_warmup_latency",
        ":tensorflow:serving:batching_session:queuing_latency",
        ":tensorflow:cc:saved_model:load_attempt_count{",
    ):
        assert line in text, text[:4000]
    assert batching.ask("GET", "/monitoring/prometheus/metrics")[0] == 404
