"""A server behind TLS and keys, asked over both skins by honest and hostile clients."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import ssl
import time
import zlib

import grpc
import pytest

from tests.serving.auth.certificates import Authority
from timonel.serving.auth.keys import change_entries, new_key
from timonel.serving.console.page.app import page_files
from timonel.serving.launch import launch
from timonel.serving.protocols.v2.service import SERVICE, message_class
from timonel.serving.protos.messages import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    predict_pb2,
)
from timonel.serving.settings.auth import AccessSettings, LimitSettings, Right, TlsSettings
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import METRICS_PATH, ServerSettings
from timonel.storage import find_workspace

pytestmark = pytest.mark.process

BODY = b'{"instances": [1.0]}'
MAX_BODY = 100_000
MAX_HEAD = 4096


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def authority(place):
    found = Authority()
    (place / "ca.pem").write_bytes(found.pem)
    return found


@pytest.fixture(scope="module")
def keys(place):
    """Keys by name, in a file."""
    now = time.time()
    made = {}
    entries = []
    for name, right, expires in (
        ("user", Right.USE, None),
        ("admin", Right.ADMIN, None),
        ("old", Right.ADMIN, now - 1),
        ("spare", Right.USE, None),
    ):
        made[name], entry = new_key(name, right, now=now, expires=expires)
        entries.append(entry)
    change_entries(place / "keys.json", lambda _: entries)
    return made


def settings_for(workspace, **access):
    for name in ("dogs", "cats"):
        folder = workspace.models / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "saved_model.pb").write_text("2")
    return ServerSettings(
        models=tuple(
            ModelSettings(name=name, base_path=str(workspace.models / name))
            for name in ("dogs", "cats")
        ),
        rest_port=0,
        grpc_port=0,
        drain_s=1,
        load=LoadSettings(poll_s=0.1, settle_s=0),
        runtime=RuntimeSettings(name="fake"),
        access=AccessSettings(**access),
    )


@pytest.fixture(scope="module")
def server(place, authority, keys, fake_runtime):
    certificate, private = authority.issue(place, "server")
    workspace = find_workspace(place / "workspace")
    settings = settings_for(
        workspace,
        api_keys=str(place / "keys.json"),
        tls=TlsSettings(certificate=str(certificate), key=str(private)),
        limits=LimitSettings(
            max_body=MAX_BODY, max_head=MAX_HEAD, head_s=0.5, body_s=1.0, max_connections=20
        ),
    )
    with launch(settings, workspace) as started:
        yield started


def trusting(place):
    return ssl.create_default_context(cafile=str(place / "ca.pem"))


def address(server):
    host, _, port = server.rest_url.rpartition("/")[2].rpartition(":")
    return host, int(port)


@pytest.fixture
def rest(server, place):
    def ask(path, *, method=None, body=None, context=None, **headers):
        connection = http.client.HTTPSConnection(
            *address(server), context=context or trusting(place), timeout=20
        )
        with contextlib.closing(connection):
            shown = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("POST" if body else "GET"), path, body, shown)
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content), response.headers

    return ask


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


PREDICT = "/v1/models/dogs:predict"


def test_who_may(rest, keys):
    for headers in (
        bearer(keys["user"]),
        {"X-API-Key": keys["user"]},
        {"authorization": f"bearer  {keys['admin']} "},
    ):
        assert rest(PREDICT, body=BODY, **headers)[:2] == (200, {"predictions": [2.0]}), headers


def test_strangers_see_nothing(rest, keys):
    strange = [
        {},
        bearer(""),
        bearer("tml_1_2"),
        bearer(keys["user"][:-1]),
        bearer(keys["old"]),
        {"Authorization": f"Basic {keys['user']}"},
        {"Authorization": keys["user"]},
        {**bearer(keys["user"]), "X-API-Key": keys["user"]},
    ]
    answers = set()
    for headers in strange:
        for path in (PREDICT, "/v1/models/nope:predict"):
            status, content, found = rest(path, body=BODY, **headers)
            assert found["www-authenticate"] == "Bearer"
            answers.add((status, content["error"]))
        for path in (
            "/v1/models",
            "/v1/models/dogs",
            "/openapi.json",
            "/page/live",
            "/page/models/dogs/1",
            "/nowhere",
            "/v1/x",
            "/metrics",
            "/v2",
        ):
            status, content, _ = rest(path, **headers)
            answers.add((status, content["error"]))
    assert answers == {(401, "no valid API key")}


@pytest.mark.parametrize(
    ("path", "status", "allow"),
    [
        (METRICS_PATH, 401, None),
        ("/metrics", 401, None),
        ("/monitoring/answers", 401, None),
        ("/openapi.json", 401, None),
        ("/page/live", 401, None),
        ("/page/models/dogs/1", 401, None),
        ("/nowhere", 401, None),
        ("/v1/models", 400, None),
        ("/v1/models/dogs", 400, None),
        ("/v2", 405, "GET"),
        ("/v2/models/dogs", 405, "GET"),
    ],
)
def test_options_shows_nothing_without_a_key(server, place, path, status, allow):
    connection = http.client.HTTPSConnection(*address(server), context=trusting(place), timeout=20)
    with contextlib.closing(connection):
        connection.request("OPTIONS", path)
        response = connection.getresponse()
        content = response.read()
    assert (response.status, response.headers["allow"]) == (status, allow)
    assert b"dogs" not in content
    assert len(content) < 300


def test_a_key_for_use_reads_what_needs_no_admin(rest, keys):
    refused = (403, {"error": "not allowed for these credentials"})
    assert rest("/monitoring/answers", **bearer(keys["user"]))[:2] == refused
    assert rest("/monitoring/answers", **bearer(keys["admin"]))[0] == 200
    for path in ("/v1/models", "/v1/models/cats", "/openapi.json", "/page/live"):
        assert rest(path, **bearer(keys["user"]))[0] == 200
    assert rest("/v1/models/nope", **bearer(keys["user"]))[0] == 404


V2_BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}'


def test_the_open_inference_protocol_needs_the_same_key(rest, keys):
    key = bearer(keys["user"])
    status, content, _ = rest("/v2/models/dogs/infer", body=V2_BODY, **key)
    assert (status, content["outputs"][0]["data"]) == (200, [2.0])
    assert rest("/v2/models/dogs", **key)[0] == rest("/v2", **key)[0] == 200
    assert rest("/v2/models/dogs/infer", body=V2_BODY)[0] == 401
    for path in ("live", "ready"):
        assert rest(f"/v2/health/{path}")[0] == 200
    assert rest("/v2/models/dogs/ready")[0] == 401
    too_large = b" " * (MAX_BODY + 1)
    assert rest("/v2/models/dogs/infer", body=too_large, **key)[0] == 413


def test_the_page_itself_needs_no_key_and_says_nothing_of_the_server(server, place):
    connection = http.client.HTTPSConnection(*address(server), context=trusting(place), timeout=20)
    with contextlib.closing(connection):
        for path in page_files():
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == 200
            assert b"dogs" not in response.read()


def test_health_is_open(server, place):
    connection = http.client.HTTPSConnection(*address(server), context=trusting(place), timeout=20)
    with contextlib.closing(connection):
        for path in ("/livez", "/readyz"):
            connection.request("GET", path)
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"ok")


def test_a_revoked_key_ends_while_the_server_runs(rest, keys, place):
    assert rest(PREDICT, body=BODY, **bearer(keys["spare"]))[0] == 200
    change_entries(place / "keys.json", lambda found: [e for e in found if e.name != "spare"])
    deadline = time.monotonic() + 10
    while rest(PREDICT, body=BODY, **bearer(keys["spare"]))[0] == 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert rest(PREDICT, body=BODY, **bearer(keys["user"]))[0] == 200


def test_only_new_tls_is_spoken(server, place):
    context = trusting(place)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(address(server), 5) as plain, pytest.raises(OSError):
        context.wrap_socket(plain, server_hostname="localhost")


# Sizes and times


def test_bodies_have_a_limit(rest, keys):
    key = bearer(keys["user"])
    assert rest(PREDICT, body=b" " * (MAX_BODY - len(BODY)) + BODY, **key)[0] == 200
    for body in (b" " * (MAX_BODY + 1), (b" " * 10_000 for _ in range(11))):
        status, content, _ = rest(PREDICT, body=body, **key)
        assert status == 413
        assert content["error"].startswith(f"The request body is larger than {MAX_BODY} bytes.")
        assert "--max-body" in content["error"]


def test_a_body_is_refused_before_it_is_there(server, place, keys):
    with _raw(server, place) as client:
        client.sendall(
            f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {keys['user']}\r\n"
            "Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_compressed_bodies(rest, keys):
    key = {**bearer(keys["user"]), "Content-Encoding": "gzip"}
    assert rest(PREDICT, body=gzip.compress(BODY), **key)[0] == 200
    packer = zlib.compressobj(9, wbits=31)
    bomb = packer.compress(bytes(50 * 2**20)) + packer.flush()
    assert len(bomb) < MAX_BODY
    status, content, _ = rest(PREDICT, body=bomb, **key)
    assert status == 413
    assert f"larger than {MAX_BODY} bytes when unpacked." in content["error"]
    for damaged in (b"nonsense", gzip.compress(BODY)[:-9], gzip.compress(BODY)[:5]):
        status, content, _ = rest(PREDICT, body=damaged, **key)
        assert (status, content["error"]) == (400, "JSON Parse error: The document is empty")


@contextlib.contextmanager
def _raw(server, place):
    with (
        socket.create_connection(address(server), 10) as plain,
        trusting(place).wrap_socket(plain, server_hostname="localhost") as client,
    ):
        yield client


def _rest_of(client):
    content = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while chunk := client.recv(65536):
            content += chunk
    return content


def test_headers_have_a_limit(server, place):
    for head in (
        b"GET / HTTP/1.1\r\nX: " + b"x" * (2 * MAX_HEAD),
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * MAX_HEAD + b"\r\n",
        b"GET /" + b"x" * (2 * MAX_HEAD) + b" HTTP/1.1\r\n\r\n",
    ):
        with _raw(server, place) as client:
            client.sendall(head)
            assert _rest_of(client).startswith(b"HTTP/1.1 431 "), head[:30]


def test_slow_clients_are_sent_away(server, place, keys):
    with _raw(server, place) as client:
        client.sendall(b"GET / HTT")
        assert _rest_of(client).startswith(b"HTTP/1.1 408 ")
    with _raw(server, place) as client:
        client.sendall(
            f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {keys['user']}\r\n"
            "Content-Length: 20\r\n\r\n{".encode()
        )
        assert _rest_of(client).startswith(b"HTTP/1.1 408 ")


def test_a_connection_is_used_again_after_a_pause(server, place, keys):
    connection = http.client.HTTPSConnection(*address(server), context=trusting(place), timeout=20)
    with contextlib.closing(connection):
        for pause in (0, 1.2):
            time.sleep(pause)
            connection.request("POST", PREDICT, BODY, bearer(keys["user"]))
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (200, True)


def test_no_more_connections_than_allowed(server, place, rest, keys):
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(_raw(server, place)) for _ in range(21)]
        assert _rest_of(clients[-1]).startswith(b"HTTP/1.1 503 ")
    deadline = time.monotonic() + 5
    while rest("/v1/models/dogs", **bearer(keys["user"]))[0] != 200:
        assert time.monotonic() < deadline


# gRPC


@pytest.fixture
def call(server, place):
    trust = grpc.ssl_channel_credentials((place / "ca.pem").read_bytes())
    with grpc.secure_channel(server.grpc_address, trust) as channel:

        def ask(method, request, *metadata):
            service = (
                "ModelService" if "Status" in method or "Reload" in method else "PredictionService"
            )
            stub = channel.unary_unary(
                f"/tensorflow.serving.{service}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
            )
            try:
                return "OK", stub(request, metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                return error.code().name, error.details()

        yield ask


def about(kind, name):
    request = kind()
    request.model_spec.name = name
    return request


def test_grpc_admits_the_same(call, keys):
    key = ("authorization", f"Bearer {keys['user']}")
    status = about(get_model_status_pb2.GetModelStatusRequest, "dogs")
    assert call("GetModelStatus", status, key)[0] == "OK"
    assert call("GetModelStatus", status, ("x-api-key", keys["user"]))[0] == "OK"
    stranger = ("UNAUTHENTICATED", "no valid API key")
    for name in ("dogs", "nope", ""):
        for method, kind in (
            ("GetModelStatus", get_model_status_pb2.GetModelStatusRequest),
            ("Predict", predict_pb2.PredictRequest),
            ("GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest),
        ):
            request = about(kind, name)
            assert call(method, request) == stranger
            assert call(method, request, ("x-api-key", keys["old"])) == stranger
            assert call(method, request, key, key) == stranger
    for unknown in ("PredictX", "SessionRun"):
        assert call(unknown, status) == stranger
        assert call(unknown, status, key) == ("UNIMPLEMENTED", "Method not found!")


def test_grpc_reloads_need_the_right_to_administrate(call, keys):
    request = model_management_pb2.ReloadConfigRequest()
    assert call("HandleReloadConfigRequest", request)[0] == "UNAUTHENTICATED"
    answer = call("HandleReloadConfigRequest", request, ("x-api-key", keys["user"]))
    assert answer[0] == "PERMISSION_DENIED"


def test_grpc_messages_have_a_limit(call, keys):
    request = about(predict_pb2.PredictRequest, "dogs")
    request.inputs["x"].tensor_content = bytes(MAX_BODY + 1)
    assert call("Predict", request, ("x-api-key", keys["user"]))[0] == "RESOURCE_EXHAUSTED"


def infer_request(name):
    request = message_class("ModelInferRequest")(model_name=name)
    request.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1)
    return request.SerializeToString()


def test_the_open_inference_protocol_over_grpc_needs_the_same_key(server, place, keys):
    def ask(method, content, key=None):
        metadata = [("x-api-key", keys[key])] if key else []
        path, options = f"/{SERVICE}/{method}", {"metadata": metadata, "timeout": 20}
        try:
            return "OK", channel.unary_unary(path)(content, **options)
        except grpc.RpcError as error:
            return error.code().name, error.details()

    trust = grpc.ssl_channel_credentials((place / "ca.pem").read_bytes())
    with grpc.secure_channel(server.grpc_address, trust) as channel:
        dogs = infer_request("dogs")
        assert ask("ModelInfer", dogs, "user")[0] == "OK"
        assert ask("ModelInfer", dogs)[0] == "UNAUTHENTICATED"
        assert ask("ServerLive", b"")[0] == ask("ServerMetadata", b"", "user")[0] == "OK"


def test_grpc_reflection_needs_a_key(server, place, keys):
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    trust = grpc.ssl_channel_credentials((place / "ca.pem").read_bytes())
    with grpc.secure_channel(server.grpc_address, trust) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.ServerReflectionInfo(iter([question]), timeout=20))
        assert refused.value.code().name == "UNAUTHENTICATED"
        metadata = [("x-api-key", keys["user"])]
        (answer,) = stub.ServerReflectionInfo(iter([question]), timeout=20, metadata=metadata)
        assert SERVICE in {each.name for each in answer.list_services_response.service}


def test_grpc_health_is_open(server, place):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    trust = grpc.ssl_channel_credentials((place / "ca.pem").read_bytes())
    with grpc.secure_channel(server.grpc_address, trust) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watched = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=20)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        watched.cancel()


def test_plain_text_is_not_answered(server):
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as caught:
            stub(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_secrets_are_in_no_log(server, keys):
    log = server.logs()
    for key in keys.values():
        assert key.split("_", 2)[2] not in log


# Renewal, of which this must be the last test of this server


def test_renewed_certificates_are_shown_without_a_restart(server, authority, place):
    def shown():
        with _raw(server, place) as client:
            rest = client.getpeercert(binary_form=True)
        pem = ssl.get_server_certificate(tuple(server.grpc_address.split(":")), timeout=10)
        return rest, ssl.PEM_cert_to_DER_cert(pem)

    before = shown()
    assert before[0] == before[1]
    (place / "server.key").write_text("half written")
    time.sleep(1.1)
    assert shown() == before
    authority.issue(place, "server")
    time.sleep(1.1)
    after = shown()
    assert after[0] == after[1] != before[0]
