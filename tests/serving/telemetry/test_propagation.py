"""A client's trace reaches the spans over both skins."""

from __future__ import annotations

import asyncio
import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import pytest

from tests.contracts.runtimes import FakeModel
from tests.waiting import until
from timonel.serving.asgi import Router
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.protocols.tfs_grpc.server import GrpcServer
from timonel.serving.protocols.tfs_rest.api import RestApi
from timonel.serving.protocols.v2.api import InferenceApi
from timonel.serving.protos.messages import predict_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.settings.server import COMPARISON_HEADER, GrpcSettings
from timonel.serving.telemetry.answers import Answer, summarize
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.prometheus import metrics_route
from timonel.serving.telemetry.tracing import make_tracer

memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "vendor=1"}

INSTANCES = {"instances": [1.0]}
INPUTS = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}


@pytest.fixture
def models():
    catalogue = Catalogue()
    catalogue.publish("m", {3: Servable("m", 3, scheduled(FakeModel(2.0)))}, ())
    return catalogue


@pytest.fixture
def traced():
    """A monitor, and a function that gives the spans by name."""
    exporter = memory.InMemorySpanExporter()
    tracer, provider = make_tracer(exporter)

    def spans():
        provider.force_flush()
        return {span.name: span for span in exporter.get_finished_spans()}

    yield Monitor(tracer=tracer), spans
    provider.shutdown()


def rest(models, pool, monitor):
    flow = Flow(models, pool, monitor)
    apis = (RestApi(flow), InferenceApi(flow))
    return Router(route for api in apis for route in api.routes())


async def over_rest(app, headers=PARENT, path="/v1/models/m:predict", body=INSTANCES):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://m") as client:
        return await client.post(path, json=body, headers=headers)


async def over_grpc(models, pool, monitor, metadata=PARENT):
    flow = Flow(models, pool, monitor)
    server = GrpcServer(flow, GrpcSettings(), "127.0.0.1:0")
    await server.start()
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].CopyFrom(to_proto(np.ones(1, np.float32)))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call = channel.unary_unary(
                "/tensorflow.serving.PredictionService/Predict",
                request_serializer=predict_pb2.PredictRequest.SerializeToString,
                response_deserializer=predict_pb2.PredictResponse.FromString,
            )
            await call(request, metadata=tuple(metadata.items()), timeout=30)
    finally:
        await server.stop(1)


@pytest.mark.parametrize(("skin", "root"), [("rest", "m/predict"), ("grpc", "m/Predict")])
def test_a_clients_trace_goes_on(models, traced, skin, root):
    monitor, spans = traced
    with ThreadPoolExecutor(1) as pool:
        if skin == "rest":
            answer = asyncio.run(over_rest(rest(models, pool, monitor)))
            assert answer.json() == {"predictions": [2.0]}
        else:
            asyncio.run(over_grpc(models, pool, monitor))
    found = spans()
    assert {root, "decode", "queue", "compute", "encode"} == set(found)
    assert {f"{span.context.trace_id:032x}" for span in found.values()} == {TRACE}
    assert found[root].context.trace_state.get("vendor") == "1"
    # One after the other, within the whole.
    ends = [found[name] for name in ("decode", "queue", "compute", "encode")]
    assert all(a.end_time == b.start_time for a, b in itertools.pairwise(ends))
    assert ends[0].start_time == found[root].start_time
    assert ends[-1].end_time <= found[root].end_time + 10


def test_answers_to_compared_requests_are_the_same_over_all_protocols(models):
    monitor = Monitor()
    secrets = [{COMPARISON_HEADER: each} for each in ("rest", "v2", "grpc", "bad")]
    with ThreadPoolExecutor(1) as pool:
        app = rest(models, pool, monitor)
        for headers in (secrets[0], {}):
            asyncio.run(over_rest(app, headers))
        asyncio.run(over_rest(app, secrets[1], "/v2/models/m/infer", INPUTS))
        asyncio.run(over_grpc(models, pool, monitor, secrets[2]))
        asyncio.run(over_rest(app, secrets[3], body={"instances": ["a"]}))
    outputs = [{"y": np.array([2.0], np.float32)}]
    expected = [summarize(each, outputs) for each in ("rest", "v2", "grpc")]
    expected.append(summarize("bad", None))
    # A thread of its own summarizes answers, but not errors.
    until(lambda: json.loads(monitor.answers.since(b""))["next"] == len(expected))
    found = json.loads(monitor.answers.since(b""))["answers"]
    assert {Answer(*each) for each in found} == set(expected)


def test_the_page_has_one_path():
    monitor = Monitor()

    async def ask(*paths, method="GET"):
        with ThreadPoolExecutor(1) as pool:
            app = Router([metrics_route(monitor.page, "/metrics", pool)])
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://m") as client:
                return [await client.request(method, path) for path in paths]

    other, page, refused = asyncio.run(ask("/other", "/metrics", "/metrics?a=b"))
    assert (other.status_code, page.status_code, refused.status_code) == (404, 200, 400)
    (head,) = asyncio.run(ask("/metrics", method="HEAD"))
    assert (head.status_code, head.content) == (200, b"")
    for method in ("OPTIONS", "POST", "options"):
        (other,) = asyncio.run(ask("/metrics?a=b", method=method))
        assert (other.status_code, other.headers["allow"]) == (405, "GET, HEAD")
