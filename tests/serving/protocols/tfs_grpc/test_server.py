from __future__ import annotations

import socket

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.serving.protocols.tfs_grpc.conftest import refusal, running
from tests.serving.protocols.tfs_grpc.test_services import predict_request
from timonel.serving.settings.server import GrpcSettings
from timonel.serving.telemetry.monitor import Monitor

HEALTHY = health_pb2.HealthCheckResponse.SERVING
X = np.ones(2, np.float32)


def listed(client):
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]))
    return {service.name for service in answer.list_services_response.service}


def test_health_of_the_server_and_its_services(served):
    stub = health_pb2_grpc.HealthStub(served.channel)
    for name in ("", "ModelService", "PredictionService"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == HEALTHY
    assert refusal(stub.Check, health_pb2.HealthCheckRequest(service="m"))[0] == "NOT_FOUND"


def test_reflection_tells_services_and_protos(served):
    assert listed(served) == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "tensorflow.serving.ModelService",
        "tensorflow.serving.PredictionService",
    }
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    request = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="tensorflow.serving.PredictionService"
    )
    (answer,) = stub.ServerReflectionInfo(iter([request]))
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in answer.file_descriptor_response.file_descriptor_proto
    ]
    assert "tensorflow_serving/apis/prediction_service.proto" in [file.name for file in files]


def test_both_can_be_off():
    settings = GrpcSettings(health=False, reflection=False)
    with running(settings=settings) as client:
        stub = health_pb2_grpc.HealthStub(client.channel)
        assert refusal(stub.Check, health_pb2.HealthCheckRequest()) == (
            "UNIMPLEMENTED",
            "Method not found!",
        )
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            listed(client)


def test_session_service_is_not_offered(served):
    call = served.channel.unary_unary("/tensorflow.serving.SessionService/SessionRun")
    assert refusal(call, b"")[0] == "UNIMPLEMENTED"


def test_a_unix_socket_with_and_without_a_port(tmp_path):
    path = str(tmp_path / "socket")
    with running(address=None, settings=GrpcSettings(socket_path=path)) as client:
        assert client.port is None
        assert client.Predict(predict_request(x=X)).outputs
    path = str(tmp_path / "another")
    both = GrpcSettings(socket_path=path)
    with running(settings=both) as client, grpc.insecure_channel(f"unix:{path}") as channel:
        raw = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        assert raw(predict_request(x=X).SerializeToString())
        assert client.Predict(predict_request(x=X)).outputs


def test_a_port_is_taken_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RuntimeError):
            _made(address)


def _made(address):
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from timonel.serving.inference.flow import Flow
    from timonel.serving.manager.catalogue import Catalogue
    from timonel.serving.protocols.tfs_grpc.server import GrpcServer

    async def make():
        with ThreadPoolExecutor(1) as pool:
            GrpcServer(Flow(Catalogue(), pool, Monitor()), GrpcSettings(), address)

    asyncio.run(make())


def test_messages_may_be_large_and_their_size_can_be_limited(served):
    large = np.ones(2_000_000, np.float32)
    request = predict_request(x=large)
    assert request.ByteSize() > 4 * 2**20
    assert len(served.Predict(request).outputs["y"].float_val) == large.size
    limited = GrpcSettings(channel_arguments=(("grpc.max_receive_message_length", 1000),))
    with running(settings=limited) as client:
        assert client.Predict(predict_request(x=X)).outputs
        assert refusal(client.Predict, request)[0] == "RESOURCE_EXHAUSTED"


def test_requests_are_observed():
    monitor = Monitor()
    with running(monitor=monitor) as client:
        client.Predict(predict_request(x=X), metadata=[("traceparent", "00-1-2-01")])
        refusal(client.Predict, predict_request("s", x=X))
    first, second = (entry.key for entry in monitor.recent())
    assert (first.entrypoint, first.api, first.model, first.version, first.code.name) == (
        "GRPC",
        "Predict",
        "m",
        4,
        "OK",
    )
    assert second.code.name == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    "method",
    [
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_what_cannot_be_parsed_is_refused_without_a_word_of_python(served, method, caplog):
    if method.endswith("Check"):
        refused = served.channel.unary_unary(f"/{method}").future(b"\xff", timeout=20)
    elif method.endswith("Watch"):
        refused = served.channel.unary_stream(f"/{method}")(b"\xff", timeout=20)
    else:
        refused = served.channel.stream_stream(f"/{method}")(iter([b"\xff"]), timeout=20)
    assert refused.code() is grpc.StatusCode.INTERNAL
    assert refused.details() == "Exception deserializing request!"
    assert not caplog.records
