"""A server process with the fake runtime: what it counts, logs, warms up, and traces."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from timonel.data.records import frame, read_records
from timonel.errors import ServingError
from timonel.models.schema import WARMUP_FILE
from timonel.serving import running_servers
from timonel.serving.launch import launch
from timonel.serving.protos.messages import prediction_log_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.models import LoadSettings, ModelSettings, RequestLogSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import MonitoringSettings, ServerSettings
from timonel.storage import find_workspace

PATH = "/monitoring/prometheus/metrics"


def warmup_record(x):
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.inputs["x"].CopyFrom(to_proto(np.array(x, np.float32)))
    return b"".join(frame(log.SerializeToString()))


def workspace_with(folder, warm_up):
    place = find_workspace(folder / "workspace")
    version = place.models / "m" / "3"
    (version / WARMUP_FILE).parent.mkdir(parents=True)
    (version / "saved_model.pb").write_text("2")
    (version / WARMUP_FILE).write_bytes(warm_up)
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    warm_up = warmup_record([1.0]) + warmup_record([1.0, 1.0])
    return workspace_with(tmp_path_factory.mktemp("measured"), warm_up)


@pytest.fixture
def unwarmable(tmp_path):
    return workspace_with(tmp_path, b"no records")


def settings_for(place, **more):
    return ServerSettings(
        models=(ModelSettings(name="m", base_path=str(place.models / "m")),),
        rest_port=0,
        grpc_port=0,
        load=LoadSettings(poll_s=0.05, settle_s=0.05, max_retries=0),
        runtime=RuntimeSettings(name="fake", batching=AdaptiveBatching(assumed=("*",))),
        servers_folder=str(place.servers),
        **more,
    )


@pytest.fixture(scope="module")
def server(place, fake_runtime):
    with launch(settings_for(place), place, detach=False) as server:
        yield server
    assert not running_servers(place.servers)


def ask(server, path, content=None, method=None, headers=()):
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(
        server.rest_url + path, data=body, method=method, headers=dict(headers)
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers["Content-Type"], response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def metrics(server):
    status, content_type, page = ask(server, PATH)
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = text_string_to_metric_families(page.decode())
    # The parser appends _total to what a counter is called.
    return {
        (s.name.removesuffix("_total"), frozenset(s.labels.items())): s.value
        for family in families
        for s in family.samples
    }


def value(found, name, **labels):
    return found.get((name, frozenset(labels.items())))


@pytest.mark.process
def test_requests_over_both_skins_are_counted_by_version_and_stage(server):
    import grpc

    from timonel.serving.protos.messages import predict_pb2

    assert ask(server, "/v1/models/m:predict", {"instances": [1.0, 0.5]})[0] == 200
    assert ask(server, "/v1/models/m:predict", {"instances": ["text"]})[0] == 400
    assert ask(server, "/v1/models/nope:predict", {"instances": [1.0]})[0] == 404
    assert ask(server, "/v1/models/m")[0] == 200
    assert ask(server, "/v1/nonsense")[0] == 400
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].CopyFrom(to_proto(np.ones(3, np.float32)))
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        assert call(request, timeout=30).model_spec.version.value == 3
    found = metrics(server)
    count = ":tensorflow:serving:request_count"
    assert value(found, count, model_name="m", status="OK") == 3
    assert value(found, count, model_name="m", status="INVALID_ARGUMENT") == 1
    assert value(found, count, model_name="nope", status="NOT_FOUND") == 1
    assert value(found, count, model_name="", status="INVALID_ARGUMENT") == 1
    latency = ":tensorflow:serving:request_latency_count"
    rest = {"model_name": "m", "entrypoint": "REST"}
    assert value(found, latency, API="predict", **rest) == 1
    assert value(found, latency, API="", **rest) == 1
    assert value(found, latency, model_name="m", API="Predict", entrypoint="GRPC") == 1
    runtime = ":tensorflow:serving:runtime_latency_count"
    assert value(found, runtime, model_name="m", API="predict", runtime="TF1") == 1
    of_signature = {"model": "m", "version": "3", "signature": "serving_default"}
    for stage in ("decode", "queue", "compute", "encode"):
        name = "timonel_request_stage_seconds_count"
        assert value(found, name, entrypoint="rest", stage=stage, **of_signature) == 1
    assert value(found, "timonel_request_rows_sum", **of_signature) == 2 + 3
    # The version's own warm-up, of one row and of two, went the same way.
    assert value(found, "timonel_batch_rows_sum", **of_signature) == 1 + 2 + 2 + 3
    assert value(found, "timonel_versions", model="m", state="AVAILABLE") == 1
    assert value(found, "timonel_memory_bytes", process="server") > 10_000_000


@pytest.mark.process
def test_loads_and_warm_ups_are_counted(server, place):
    found = metrics(server)
    path = str(place.models / "m" / "3")
    loads = ":tensorflow:cc:saved_model:load_attempt_count"
    assert value(found, loads, model_path=path, status="success") == 1
    warmed = ":tensorflow:serving:model_warmup_records_read"
    assert value(found, warmed, model_path=path, status="OK") == 2
    name = "timonel_load_seconds_count"
    assert value(found, name, model="m", version="3", code="OK") == 1


@pytest.mark.process
def test_other_methods_and_queries_are_refused_by_the_page(server):
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert ask(server, PATH, method=method)[0] == 405
    status, content_type, text = ask(server, f"{PATH}?x=1")
    assert (status, content_type) == (400, "text/plain")
    assert text.decode() == f"Unexpected path: {PATH}?x=1. Should be {PATH}"


@pytest.mark.process
def test_what_is_logged_is_on_disk_once_the_server_has_ended(unwarmable, fake_runtime, tmp_path):
    settings = settings_for(unwarmable, monitoring=MonitoringSettings(metrics_path=None))
    load = settings.load.model_copy(update={"warm_up": False})
    prefix = tmp_path / "logs" / "m"
    logged = RequestLogSettings(filename_prefix=str(prefix), sampling_rate=1.0)
    model = settings.models[0].model_copy(update={"request_log": logged})
    settings = settings.model_copy(update={"load": load, "models": (model,)})
    with launch(settings, unwarmable, detach=False) as server:
        assert ask(server, PATH)[0] == 404
        assert ask(server, "/v1/models/m:predict", {"instances": [0.25]})[0] == 200
    (path,) = prefix.parent.iterdir()
    (record,) = read_records(path)
    log = prediction_log_pb2.PredictionLog.FromString(record).predict_log
    assert list(log.request.inputs["x"].float_val) == [0.25]
    assert list(log.response.outputs["y"].float_val) == [0.5]


@pytest.mark.process
def test_a_version_that_cannot_be_warmed_up_is_not_served(unwarmable, fake_runtime):
    with pytest.raises(ServingError, match="Please verify your warmup data is in TFRecord format"):
        launch(settings_for(unwarmable), unwarmable, detach=False)
