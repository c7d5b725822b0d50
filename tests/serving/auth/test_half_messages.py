"""Clients that send a part of many large requests, to a server whose memory is limited."""

from __future__ import annotations

import contextlib
import socket
import time

import grpc
import httpx
import pytest

from tests.serving.auth.half_messages import HalfMessage
from tests.waiting import until
from timonel.serving.auth.keys import change_entries, new_key
from timonel.serving.launch import launch
from timonel.serving.protos.messages import get_model_status_pb2
from timonel.serving.settings.auth import AccessSettings, LimitSettings
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import ServerSettings
from timonel.storage import find_workspace

pytestmark = pytest.mark.process

MIB = 2**20
LIMITS = LimitSettings(max_body=8 * MIB, max_receiving=16 * MIB, body_s=8)
PREDICT = "/tensorflow.serving.PredictionService/Predict"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return find_workspace(tmp_path_factory.mktemp("half") / "workspace")


@pytest.fixture(scope="module")
def key(place):
    made, entry = new_key("client", now=time.time())
    change_entries(place.root / "keys.json", lambda _: [entry])
    return made


def serving(place, **access):
    folder = place.models / "m" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_text("2")
    settings = ServerSettings(
        models=(ModelSettings(name="m", base_path=str(place.models / "m")),),
        rest_port=0,
        grpc_port=0,
        drain_s=1,
        load=LoadSettings(settle_s=0),
        runtime=RuntimeSettings(name="fake"),
        access=AccessSettings(limits=LIMITS, **access),
    )
    return launch(settings, place)


@pytest.fixture(scope="module")
def closed(place, key, fake_runtime):
    with serving(place, api_keys=str(place.root / "keys.json")) as started:
        yield started


@pytest.fixture(scope="module")
def open_server(place, fake_runtime):
    with serving(place) as started:
        yield started


def halves(server, stack, count, **metadata):
    host, _, port = server.grpc_address.rpartition(":")
    return [
        stack.enter_context(HalfMessage((host, int(port)), PREDICT, 7 * MIB, 6 * MIB, **metadata))
        for _ in range(count)
    ]


def test_no_message_is_received_without_a_key(closed):
    with contextlib.ExitStack() as stack:
        clients = halves(closed, stack, 5) + halves(closed, stack, 5, x_api_key="wrong")
        until(lambda: all(each.ended.is_set() for each in clients))
        # What HTTP/2 takes of a stream that nobody reads.
        assert max(each.accepted for each in clients) < 6 * MIB


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_calls_without_a_key_may_not_be_slow(closed, method):
    host, _, port = closed.grpc_address.rpartition(":")
    path = f"/grpc.health.v1.Health/{method}"
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(HalfMessage((host, int(port)), path, 7 * MIB, 6 * MIB))
            for _ in range(3)
        ]
        until(lambda: all(each.ended.is_set() for each in clients))
        channel = stack.enter_context(grpc.insecure_channel(closed.grpc_address))
        if method == "Check":
            assert channel.unary_unary(path)(b"", timeout=20) == b"\x08\x01"
        else:
            assert next(channel.unary_stream(path)(b"", timeout=20)) == b"\x08\x01"


def test_few_messages_at_once_are_received_without_a_key(closed):
    host, _, port = closed.grpc_address.rpartition(":")
    path = "/inference.GRPCInferenceService/ServerLive"
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(HalfMessage((host, int(port)), path, 7 * MIB, 6 * MIB))
            for _ in range(24)
        ]
        most = 0
        while not all(each.ended.is_set() for each in clients):
            received = [each for each in clients if each.accepted == 6 * MIB]
            most = max(most, sum(not each.ended.is_set() for each in received))
            time.sleep(0.02)
        # A client learns of its call's end a little later than the next one is received.
        assert 0 < most < 16
        channel = stack.enter_context(grpc.insecure_channel(closed.grpc_address))
        assert channel.unary_unary(path)(b"", timeout=20) == b"\x08\x01"


def test_questions_about_services_may_not_be_slow(closed, key):
    host, _, port = closed.grpc_address.rpartition(":")
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                HalfMessage((host, int(port)), path, 7 * MIB, 6 * MIB, x_api_key=key)
            )
            for _ in range(3)
        ]
        until(lambda: all(each.ended.is_set() for each in clients))
        channel = stack.enter_context(grpc.insecure_channel(closed.grpc_address))
        ask = channel.stream_stream(path)
        list_services = b"\x3a\x00"
        answers = [*ask(iter([list_services] * 2), metadata=[("x-api-key", key)], timeout=20)]
        assert [b"PredictionService" in each for each in answers] == [True, True]


@pytest.mark.parametrize("kind", ["closed", "open"])
def test_slow_messages_are_limited_in_number_and_time(closed, open_server, key, kind):
    server = closed if kind == "closed" else open_server
    with contextlib.ExitStack() as stack:
        clients = halves(server, stack, 6, **({"x_api_key": key} if kind == "closed" else {}))
        until(lambda: sum(each.ended.is_set() for each in clients) == 4)
        channel = stack.enter_context(grpc.insecure_channel(server.grpc_address))
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "m"
        call, metadata = channel.unary_unary(STATUS), [("x-api-key", key)]
        assert call(request.SerializeToString(), metadata=metadata, timeout=20)
        until(lambda: all(each.ended.is_set() for each in clients), 30)


def half_body(server, stack):
    address = httpx.URL(server.rest_url)
    client = stack.enter_context(socket.create_connection((address.host, address.port), 20))
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    client.sendall(head % (7 * MIB))
    with contextlib.suppress(ConnectionError):
        client.sendall(bytes(6 * MIB))
    return client


def test_bodies_that_arrive_are_limited_and_small_requests_are_answered(open_server):
    url = f"{open_server.rest_url}/v1/models/m:predict"
    with contextlib.ExitStack() as stack:
        *_, last = [half_body(open_server, stack) for _ in range(3)]
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = last.recv(4096)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 503 ")
        assert b"too many bytes" in answer or not answer
        small = httpx.post(url, json={"instances": [1.0]}, timeout=20)
        assert small.json() == {"predictions": [2.0]}
        # 12 MiB are taken.
        large = httpx.post(url, content=b" " * 5 * MIB, timeout=20)
        assert (large.status_code, large.headers["x-timonel-not-started"]) == (503, "1")
    until(lambda: httpx.post(url, content=b" " * 5 * MIB, timeout=20).status_code == 400)
