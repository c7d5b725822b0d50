from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import until
from timonel.serving.launch import launch
from timonel.serving.protos.messages import predict_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.settings.batching import NoBatching
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import ServerSettings
from timonel.serving.telemetry.monitor import ConcurrencyMeter
from timonel.storage import find_workspace

REST, GRPC, THREADS = 3, 2, 2


def test_requests_in_flight_are_integrated_over_time():
    meter = ConcurrencyMeter(10.0)
    meter.begin(10.25)
    meter.begin(10.5)
    meter.end(10.75)
    assert meter.read(10.75) == (1, 0.75)
    assert meter.read(11.0) == (1, 1.0)
    meter.end(11.5)
    assert meter.read(13.5) == (0, 1.5)


def test_a_clock_that_was_read_earlier_does_not_count_back():
    meter = ConcurrencyMeter(0.0)
    meter.begin(0.5)
    meter.end(0.25)
    assert meter.read(0.75) == (0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=20))
def test_the_integral_is_the_sum_of_all_durations(spans):
    meter = ConcurrencyMeter(0.0)
    events = [(min(span), 1) for span in spans] + [(max(span), 0) for span in spans]
    for at, is_begin in sorted(events, key=lambda event: event[0]):
        (meter.begin if is_begin else meter.end)(at / 64)
    total = sum(max(span) - min(span) for span in spans) / 64
    assert meter.read(6.0) == (0, pytest.approx(total))


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


@pytest.fixture
def server(tmp_path, gate, fake_runtime):
    place = find_workspace(tmp_path / "workspace")
    version = place.models / "m" / "1"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_text(str(gate))
    settings = ServerSettings(
        models=(ModelSettings(name="m", base_path=str(place.models / "m")),),
        rest_port=0,
        grpc_port=0,
        load=LoadSettings(poll_s=0.05, settle_s=0.05, max_retries=0),
        runtime=RuntimeSettings(name="gated", batching=NoBatching()),
        compute_threads=THREADS,
    )
    with launch(settings, place) as server:
        yield server
        gate.touch()


def predict_over_rest(server):
    body = json.dumps({"instances": [2.0]}).encode()
    with urllib.request.urlopen(
        f"{server.rest_url}/v1/models/m:predict", data=body, timeout=60
    ) as answer:
        return answer.status


def predict_over_grpc(server):
    import grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].CopyFrom(to_proto(np.full(1, 2.0, np.float32)))
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        return call(request, timeout=60).model_spec.version.value


def read(server):
    """The metrics' sums by name, and the times before and after."""
    before = time.monotonic()
    with urllib.request.urlopen(
        f"{server.rest_url}/monitoring/prometheus/metrics", timeout=30
    ) as answer:
        page = answer.read().decode()
    sums = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums, before, time.monotonic()


@pytest.mark.process
def test_a_server_reports_the_concurrency_of_a_known_load(server, gate):
    with ThreadPoolExecutor(REST + GRPC) as pool:
        answers = [pool.submit(predict_over_rest, server) for _ in range(REST)]
        answers += [pool.submit(predict_over_grpc, server) for _ in range(GRPC)]
        until(lambda: read(server)[0]["timonel_requests_in_flight"] == REST + GRPC)
        # As many as there are threads are computed.
        until(lambda: read(server)[0]["timonel_requests_queued"] == REST + GRPC - THREADS)
        first, first_before, first_after = read(server)
        time.sleep(0.5)
        second, second_before, second_after = read(server)
        name = "timonel_request_concurrency_seconds_total"
        passed_s = (second[name] - first[name]) / (REST + GRPC)
        assert second_before - first_after <= passed_s <= second_after - first_before
        gate.touch()
        assert sorted(answer.result() for answer in answers) == [1] * GRPC + [200] * REST
    until(lambda: read(server)[0]["timonel_requests_in_flight"] == 0)
    last, *_ = read(server)
    assert last["timonel_requests_in_flight"] == last["timonel_requests_queued"] == 0
    # Reading the status and the metrics does not count.
    assert last[name] == pytest.approx(last["timonel_request_seconds_sum"], rel=1e-3)
