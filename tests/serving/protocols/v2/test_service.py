from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given, settings

from tests.serving.protocols.v2.arrays import arrays, same
from tests.serving.protocols.v2.models import Echo, catalogue_of
from tests.serving.protocols.v2.test_service_codec import sent_back
from timonel._version import __version__
from timonel.serving.inference.flow import Flow
from timonel.serving.protocols.tfs_grpc.server import GrpcServer
from timonel.serving.protocols.v2.service import (
    POOL,
    SERVICE,
    decode,
    inference_service,
    message_class,
)
from timonel.serving.protocols.v2.tensors import datatype_of, to_raw
from timonel.serving.settings.server import GrpcSettings
from timonel.serving.status import Code
from timonel.serving.telemetry.monitor import Monitor


class Client:
    """A server's methods, by name; they take the fields of their requests."""

    def __init__(self, channel, monitor):
        self.channel = channel
        self.monitor = monitor
        self.draining = False

        for method in POOL.FindServiceByName(SERVICE).methods:
            setattr(self, method.name, self._method(method.name))

    def _method(self, name):
        request, response = map(message_class, (f"{name}Request", f"{name}Response"))
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return lambda message=None, timeout=20, **fields: method(
            request(**fields) if message is None else message, timeout=timeout
        )


@contextlib.contextmanager
def running(catalogue):
    monitor, clients, ready, ended = Monitor(), [], threading.Event(), []

    async def serve():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ended.append(lambda: loop.call_soon_threadsafe(stop.set))
        with ThreadPoolExecutor(2) as pool:
            flow = Flow(catalogue, pool, monitor)
            others = (inference_service(flow, lambda: clients[0].draining),)
            server = GrpcServer(flow, GrpcSettings(), "127.0.0.1:0", others=others)
            await server.start()
            channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
            clients.append(Client(channel, monitor))
            ready.set()
            await stop.wait()
            await server.stop(1)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    try:
        with clients[0].channel:
            yield clients[0]
    finally:
        ended[0]()
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def catalogue():
    return catalogue_of(Echo())


@pytest.fixture(scope="module")
def client(catalogue):
    with running(catalogue) as client:
        yield client


def request(array=None, *, raw=True, signature="", **fields):
    message = message_class("ModelInferRequest")(model_name="m", **fields)
    array = np.array([[1, 2]], np.float32) if array is None else array
    tensor = message.inputs.add(name="x", datatype=datatype_of("x", array), shape=array.shape)
    if raw:
        message.raw_input_contents.append(to_raw(array))
    else:
        tensor.contents.fp32_contents.extend(array.reshape(-1).tolist())
    if signature:
        message.parameters["signature_name"].string_param = signature
    return message


def refusal(call, *args, **kwargs):
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **kwargs)
    return caught.value.code().name, caught.value.details()


def test_the_server_and_its_models_are_described(client):
    assert client.ServerLive().live
    assert not client.ServerReady().ready
    server = client.ServerMetadata()
    assert (server.name, server.version) == ("timonel", __version__)
    assert list(server.extensions) == ["binary_tensor_data"]
    model = client.ModelMetadata(name="m", version="stable")
    assert (model.name, list(model.versions)) == ("m", ["3", "4"])
    assert model.platform == "echo_all"
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [
        ("x", "FP32", [-1, 2]),
        ("k", "FP32", []),
    ]


def test_readiness_is_honest(client, catalogue):
    assert client.ModelReady(name="m").ready
    assert client.ModelReady(name="m", version="3").ready
    assert not client.ModelReady(name="m", version="5").ready
    assert not client.ModelReady(name="n").ready
    assert refusal(client.ModelReady, name="nosuch")[0] == "NOT_FOUND"
    catalogue.configure({"m": {"stable": 3}})
    try:
        assert client.ServerReady().ready
        client.draining = True
        assert not client.ServerReady().ready
    finally:
        client.draining = False
        catalogue.configure({"m": {"stable": 3}, "n": {}})


@pytest.mark.parametrize("raw", [False, True])
def test_contents_come_back_in_the_form_they_came_in(client, raw):
    message = request(raw=raw, id="7")
    message.outputs.add(name="y")
    response = client.ModelInfer(message)
    assert (response.model_name, response.model_version, response.id) == ("m", "4", "7")
    assert bool(response.raw_output_contents) == raw
    assert decode(sent_back(response)).inputs["y"].tolist() == [[3, 5]]
    large = np.ones((2**14, 2), np.float32)  # through the pool
    again = decode(sent_back(client.ModelInfer(request(large, raw=raw)))).inputs
    assert same(again["y"], large * 3)


@settings(max_examples=30)
@given(arrays())
def test_every_type_comes_back_as_it_was_sent(client, array):
    response = client.ModelInfer(request(array, signature=datatype_of("x", array)))
    assert same(decode(sent_back(response)).inputs["y"], array)


@pytest.mark.parametrize(
    ("message", "code", "told"),
    [
        (request(model_version="9"), "NOT_FOUND", "Specific(m, 9)"),
        (request(model_version="no"), "INVALID_ARGUMENT", "version label: no"),
        (request(signature="no"), "FAILED_PRECONDITION", '"no" not found.'),
        (request(np.zeros((1, 2))), "INVALID_ARGUMENT", "to be FP32, got FP64"),
        (request(np.zeros((1, 3), np.float32)), "INVALID_ARGUMENT", "[-1, 2], got [1, 3]"),
        (request(-np.ones((1, 2), np.float32)), "INVALID_ARGUMENT", "no negative numbers"),
        (message_class("ModelInferRequest")(model_name="m"), "INVALID_ARGUMENT", "alias: x"),
        (message_class("ModelInferRequest")(), "NOT_FOUND", "Latest()"),
    ],
)
def test_what_cannot_be_answered_has_one_clear_error(client, message, code, told):
    found, text = refusal(client.ModelInfer, message)
    assert found == code
    assert told in text


def test_what_is_no_message_is_refused(client):
    call = client.channel.unary_unary(f"/{SERVICE}/ModelInfer")
    assert refusal(call, b"\xff") == ("INTERNAL", "Exception deserializing request!")


def test_a_requests_own_timeout_holds(catalogue):
    release = threading.Event()

    class Slow(Echo):
        def run(self, signature, inputs, outputs=None):
            release.wait(20)
            return super().run(signature, inputs, outputs)

    with running(catalogue_of(Slow())) as client:
        message = request()
        message.parameters["timeout"].int64_param = 50_000
        assert refusal(client.ModelInfer, message)[0] == "DEADLINE_EXCEEDED"
        release.set()


def test_inferences_are_counted_and_probes_are_not(catalogue):
    with running(catalogue) as client:
        client.ModelInfer(request())
        refusal(client.ModelInfer, request(model_version="9"))
        client.ServerLive()
        client.ModelReady(name="m")
    counted = {
        (key.api, key.model, key.version, key.code): sum(value.whole.counts)
        for key, value in client.monitor.counts().requests.items()
    }
    assert counted == {
        ("ModelInfer", "m", 4, Code.OK): 1,
        ("ModelInfer", "m", None, Code.NOT_FOUND): 1,
        ("ModelReady", "m", None, Code.OK): 1,
    }
    page = client.monitor.page().decode()
    line = ':tensorflow:serving:request_count{model_name="m",status="OK"} 1.0'
    assert line in page


def test_health_and_reflection_know_the_service(client):
    health = health_pb2_grpc.HealthStub(client.channel)
    checked = health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert checked.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.No"),
        reflection_pb2.ServerReflectionRequest(
            all_extension_numbers_of_type="inference.ModelInferRequest"
        ),
    ]
    services, files, unknown, extensions = stub.ServerReflectionInfo(iter(asked))
    assert SERVICE in {each.name for each in services.list_services_response.service}
    (file,) = files.file_descriptor_response.file_descriptor_proto
    described = descriptor_pb2.FileDescriptorProto.FromString(file)
    assert described.service[0].name == "GRPCInferenceService"
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert not extensions.all_extension_numbers_response.extension_number
