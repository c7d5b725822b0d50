"""What a gateway admits: Envoy with the rendered configuration, before a replica that echoes."""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.endpoints.tokens import CLAIMS, jwks, rsa, token
from tests.waiting import until
from timonel.endpoints.gateway.files import ConfigFiles
from timonel.endpoints.gateway.parts import EndpointRoute, Places, Secrets
from timonel.endpoints.gateway.process import envoy_command
from timonel.endpoints.gateway.xds import bootstrap, files
from timonel.endpoints.spec import EndpointSpec, Traffic
from timonel.processes.ports import PortReservation
from timonel.serving.settings.server import NOT_STARTED_HEADER

pytestmark = pytest.mark.process

KEY = "0123456789abcdef"
PREDICT = "/v1/models/digits:predict"
ISSUER = {"issuer": CLAIMS["iss"], "audience": CLAIMS["aud"], "claims": {"scope": "predict"}}


class _Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the request's path and headers, or with public keys."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        seen = {name.lower(): value for name, value in self.headers.items()}
        text = jwks(rsa()) if self.path == "/jwks" else json.dumps(seen | {"path": self.path})
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_OPTIONS = do_GET  # noqa: N815 - names of the base class

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def replica() -> Iterator[str]:
    rsa()  # made here, as two threads at once would make two
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


class Gate:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, path: str = PREDICT, method: str = "POST", client: str = "127.0.0.1", **headers: str
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        source = (client, 0)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, 10, source)
        with closing(connection):
            shown = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, b"{}" if method == "POST" else None, shown)
            response = connection.getresponse()
            return response.status, json.loads(response.read()), dict(response.headers)

    def statuses(self, count: int, **how: str) -> list[int]:
        return [self.ask(**how)[0] for _ in range(count)]


@pytest.fixture
def gate(tmp_path: Path, replica: str) -> Any:
    @contextmanager
    def start(
        secrets: Secrets = Secrets(),  # noqa: B008
        http: tuple[str, ...] = (replica,),
        grpc: tuple[str, ...] = (replica,),
        traffic: Traffic = Traffic(percent={1: 100}),  # noqa: B008
        **fields: Any,
    ) -> Iterator[Gate]:
        ports = PortReservation(2)
        port, ready = (int(each.rpartition(":")[2]) for each in ports.addresses)
        spec = EndpointSpec(name="digits", model="digits", traffic=traffic, port=port, **fields)
        replicas = {each: {"http": http, "grpc": grpc} for each in traffic.versions}
        route = EndpointRoute(spec, traffic, replicas, secrets)
        places = Places(tmp_path / "config", tmp_path / "activator.sock")
        config = ConfigFiles(places.config)
        config.write(files([route], places))
        begin = config.write_bootstrap(bootstrap(places, 100))
        # Its admin socket needs a short path.
        command = [*envoy_command(begin, Path("admin"), "127.0.0.1", str(ready))]
        (tmp_path / "admin").mkdir()
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as envoy:
            try:
                started = Gate(port)
                until(lambda: _answers(started))
                yield started
            finally:
                envoy.kill()
                ports.release()

    return start


def _answers(gate: Gate) -> bool:
    try:
        return bool(gate.ask("/metrics", "GET", "127.0.0.99"))
    except OSError:
        return False


class _Busy(_Echo):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(503)
        self.send_header(NOT_STARTED_HEADER, "1")
        self.send_header("content-length", "0")
        self.end_headers()


def test_a_request_that_a_replica_did_not_begin_goes_to_another(gate: Any, replica: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Busy) as busy:
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        with gate(http=(replica, f"127.0.0.1:{busy.server_port}")) as made:
            assert set(made.statuses(30)) == {200}
        busy.shutdown()


def _grpc_server(port: str, answer: Any) -> grpc.Server:
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.S", {"M": handler})])
    server.add_insecure_port(port)
    server.start()
    return server


def test_a_call_that_a_replica_did_not_begin_goes_to_another(gate: Any) -> None:
    def busy(_: bytes, context: Any) -> bytes:
        context.send_initial_metadata(((NOT_STARTED_HEADER, "1"),))
        context.set_code(grpc.StatusCode.UNAVAILABLE)
        return b""

    with PortReservation(2) as ports:
        servers = [
            _grpc_server(port, answer)
            for port, answer in zip(ports, (busy, lambda *_: b"done"), strict=True)
        ]
        with (
            gate(grpc=tuple(ports)) as made,
            grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
        ):
            call = channel.unary_unary("/t.S/M")
            assert {call(b"", timeout=20) for _ in range(30)} == {b"done"}
        for server in servers:
            server.stop(None)


def test_each_client_has_its_rate_by_address(gate: Any) -> None:
    with gate(limits={"rate": "3/h:3", "total_rate": "5/h:6"}) as made:
        assert made.statuses(4) == [200, 200, 200, 429]
        status, body, headers = made.ask(x_forwarded_for="192.0.2.1", x_timonel_client="other")
        assert (status, body) == (429, {"error": "local_rate_limited"})
        assert headers["retry-after"] == "1200"
        assert made.statuses(3, client="127.0.0.2") == [200, 200, 429]  # all together


def test_grpc_calls_have_the_same_rate(gate: Any) -> None:
    with (
        gate(limits={"rate": "2/h:2"}) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        assert made.statuses(2) == [200, 200]
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "local_rate_limited"


def test_only_proxies_tell_the_address_of_a_client(gate: Any) -> None:
    with gate(limits={"rate": "1/h"}, access={"proxies": ["127.0.0.3"]}) as made:
        assert [made.ask(x_forwarded_for=f"192.0.2.{n}")[0] for n in range(2)] == [200, 429]
        by_proxy = [made.ask(client="127.0.0.3", x_forwarded_for=f"192.0.2.{n}") for n in (1, 2, 1)]
        assert [status for status, *_ in by_proxy] == [200, 200, 429]


def test_each_key_has_its_rate(gate: Any) -> None:
    secrets = Secrets({"shop": KEY, "lab": f"{KEY}2"})
    with gate(secrets, access={"api_keys": "/keys"}, limits={"rate": "1/h:2"}) as made:
        assert made.statuses(3) == [401, 401, 401]
        assert made.ask(method="OPTIONS")[0] == 401
        assert made.statuses(3, x_api_key=KEY) == [200, 200, 429]
        status, seen, _ = made.ask(authorization=f"Bearer {KEY}2", x_timonel_client="shop")
        assert (status, seen["x-timonel-client"], "authorization" in seen) == (200, "lab", False)


def test_without_keys_none_is_valid(gate: Any) -> None:
    with gate(Secrets({}), access={"api_keys": "/keys"}) as made:
        assert [made.ask(x_api_key=key)[0] for key in ("", KEY)] == [401, 401]


@pytest.mark.parametrize("is_remote", [False, True])
def test_tokens_name_a_client_and_have_the_claims(gate: Any, replica: str, is_remote: bool) -> None:
    place = f"http://{replica}/jwks" if is_remote else "/jwks"
    secrets = Secrets(jwks=None if is_remote else jwks(rsa()))
    soon = int(time.time()) + 100
    with gate(secrets, access={"jwt": {**ISSUER, "jwks": place}}, limits={"rate": "1/h:3"}) as made:

        def ask(**claims: Any) -> tuple[int, Any]:
            bearer = f"Bearer {token(**{'exp': soon, 'scope': 'openid predict', **claims})}"
            return made.ask(authorization=bearer, x_timonel_client="root")[:2]

        until(lambda: ask(sub="first")[0] == 200, seen=lambda: ask(sub="first"))
        status, seen = ask()
        assert (status, seen["x-timonel-client"]) == (200, "alice")
        assert ask(scope=["x", "predict"])[0] == 200
        refused = (403, {"error": "RBAC: access denied"})
        assert ask(scope="openid") == ask(scope="predictor") == ask(sub=None) == refused
        assert ask(exp=soon - 300)[0] == ask(exp=None)[0] == ask(iss="x")[0] == 401
        assert ask(aud="x")[0] == 403
        assert ask(key=rsa("mallory"))[0] == made.ask()[0] == 401
        assert [ask()[0], ask()[0], ask(sub="bob")[0]] == [200, 429, 200]


def test_without_public_keys_no_token_is_valid(gate: Any) -> None:
    access = {"jwt": {**ISSUER, "jwks": "/jwks"}}
    with gate(Secrets(jwks='{"keys": []}'), access=access) as made:
        bearer = f"Bearer {token(exp=int(time.time()) + 100, scope='predict')}"
        assert made.ask(authorization=bearer)[0] == 403


def test_pages_of_other_sites_compute_nothing(gate: Any) -> None:
    with gate(access={"hosts": ["lab.example"]}) as made:
        own = f"http://127.0.0.1:{made.port}"
        for origin in (own, "https://lab.example"):
            status, seen, _ = made.ask(origin=origin)
            assert (status, "origin" in seen) == (200, False)
        for origin in (
            "http://127.0.0.1:1",
            "https://lab.example:1",
            "https://other.example",
            "null",
        ):
            assert made.ask(origin=origin)[:2] == (403, {"error": "Invalid origin"})
        assert made.ask("/v1/models/digits", "GET", origin="https://other.example")[0] == 200


def test_another_host_is_refused_with_the_reason(gate: Any) -> None:
    with gate() as made:
        status, body, _ = made.ask(host="other.example")
        assert (status, "use localhost, or --allow-host" in body["error"]) == (403, True)
        assert made.ask(host="localhost:1")[0] == 200


@pytest.mark.parametrize(
    ("head", "status", "reason"),
    [
        ("GET / HTTP/1.1", 400, "the request has no Host header"),
        ("GET /v1/%00 HTTP/1.1\r\nHost: localhost", 400, "the path of the request is invalid"),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost", 404, "an endpoint has no such path"),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a:1", 404, "an endpoint has no such path"),
    ],
    ids=["host", "path", "asterisk", "connect"],
)
def test_unusual_requests_are_refused_with_a_reason(
    gate: Any, head: str, status: int, reason: str
) -> None:
    with gate() as made, closing(socket.create_connection(("127.0.0.1", made.port), 10)) as sent:
        sent.sendall(f"{head}\r\n\r\n".encode())
        response = http.client.HTTPResponse(sent)
        response.begin()
        assert (response.status, json.loads(response.read())) == (status, {"error": reason})


@pytest.mark.parametrize(
    "path",
    [
        "/monitoring/prometheus/metrics", "/MONITORING/x", "/monitoring%2Fanswers", "/metrics",
        "/%6donitoring/answers", "/Metrics?x", "/./metrics",
    ],
)  # fmt: skip
def test_paths_of_single_replicas_are_none_of_the_endpoint(gate: Any, path: str) -> None:
    with gate() as made:
        assert made.ask(path, "GET")[:2] == (404, {"error": "an endpoint has no such path"})


@pytest.mark.parametrize(
    "place",
    [
        "/v1/models/digits/versions/2", "/V1/Models/digits/VERSIONS/2",
        "/v1/models/digits/versions/02", "/v1/models/digits/labels/canary",
        "/V1/Models/digits/LABELS/canary", "/v2/models/digits/versions/2",
        "/v2/models/digits/versions/canary",
    ],
)  # fmt: skip
def test_a_version_is_found_in_each_spelling_that_servers_take(gate: Any, place: str) -> None:
    with gate(traffic=Traffic(percent={1: 100}, labels={"canary": 2})) as made:
        for path in (place, f"{place}:predict"):
            assert made.ask(path)[1]["x-timonel-service"] == "digits-v2"


def test_clients_cannot_set_headers_of_the_gateway(gate: Any) -> None:
    with gate() as made:
        sent = {"x_envoy_max_retries": "9", "x_timonel_client": "root", "x_timonel_service": "y"}
        status, seen, _ = made.ask(**sent)
        assert (status, seen["x-timonel-service"]) == (200, "digits-v1")
        assert not {"x-envoy-max-retries", "x-timonel-client"} & seen.keys()
