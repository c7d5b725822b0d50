"""Endpoints with real servers and a real Envoy; their models are those of the fake runtime."""

from __future__ import annotations

import collections
import shutil
import signal
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

import timonel
from tests.endpoints.harness import (
    IDLE,
    SERVER_ARGS,
    Endpoints,
    Load,
    ask_by_grpc,
    predict,
    stopped,
    versions_of,
    write_version,
)
from tests.serving.auth.certificates import Authority
from tests.waiting import until
from timonel.cli.traffic import rules
from timonel.endpoints import Endpoint, list_endpoints, open_endpoint
from timonel.endpoints.control.scrape import parse_totals
from timonel.endpoints.gateway import process as gateway
from timonel.endpoints.handle import record
from timonel.endpoints.spec import EndpointSpec, Traffic, service_name
from timonel.engines import ServiceState
from timonel.engines.local.services.folder import ServiceFolder
from timonel.errors import EngineError, NotFoundError, ServingError, SpecError
from timonel.models.repository import workspace_models
from timonel.serving.protos.messages import predict_pb2
from timonel.serving.protos.tensors import to_proto

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_runtime")]

MODELS = {1: 1, 2: 2, 3: 3}


@pytest.fixture
def endpoint(endpoints: Endpoints) -> Endpoint:
    """The endpoint ``digits``, of version 1 alone."""
    found = endpoints.deploy("digits/1", min_replicas=1, max_replicas=3)
    if found.spec.traffic.labels or found.spec.traffic.matches or found.spec.traffic.sticky:
        found.split({1: 100}, plain=True)
        found.wait()
    return found


def test_rest_and_grpc_share_the_address(endpoint: Endpoint) -> None:
    assert predict(endpoint, 1.0).json() == {"predictions": [1.0]}
    assert ask_by_grpc(endpoint) == 1.0


def test_a_moved_alias_moves_the_traffic_without_a_lost_request(endpoints: Endpoints) -> None:
    models = workspace_models(endpoints.workspace)
    models.alias("digits", "champion", 1)
    found = endpoints.deploy("digits@champion", name="led", min_replicas=1, max_replicas=2)
    with Load(found) as load:
        models.alias("digits", "champion", 2)
        until(lambda: found.routed is not None and found.routed.spec.traffic.percent == {2: 100})
        until(lambda: predict(found, 1.0).json() == {"predictions": [2.0]})
        models.alias("digits", "champion", 1)
        until(lambda: predict(found, 1.0).json() == {"predictions": [1.0]})
    assert not load.failures
    assert "follow digits@champion to version 1: " in found.revision.cause
    found.delete()


def raw_answer(endpoint: Endpoint, head: str, body: str = '{"instances": [1.0]}') -> str:
    """Send a request as text; return the answer until the connection is idle or closed."""
    with socket.create_connection(("127.0.0.1", endpoint.spec.port), timeout=60) as connection:
        connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        connection.settimeout(60)
        found = b""
        while b"predictions" not in found and (part := connection.recv(1 << 16)):
            found += part
    return found.decode()


PREDICT = "POST /v1/models/digits:predict"
H2C = (
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"
)


@pytest.mark.parametrize(
    "head",
    [
        f"{PREDICT} HTTP/1.0",
        f"{PREDICT} HTTP/1.0\r\nHost: localhost",
        f"{PREDICT} HTTP/1.0\r\nHost: localhost\r\nConnection: Keep-Alive",
        f"{PREDICT} HTTP/1.1\r\nHost: localhost\r\nuser_id: 7",
        f"{PREDICT} HTTP/1.1\r\nHost: localhost\r\n{H2C}",
        f"{PREDICT} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2",
        f"{PREDICT} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket",
    ],
    ids=["1.0", "1.0 with a host", "1.0 kept alive", "underscore", "h2c", "TLS", "websocket"],
)
def test_clients_of_a_server_are_answered_as_well(endpoint: Endpoint, head: str) -> None:
    answer = raw_answer(endpoint, head)
    assert answer.startswith(f"HTTP/1.{'0' if 'HTTP/1.0' in head else '1'} 200")
    assert '{"predictions":[1.0]}' in answer.replace(" ", "")


def test_metadata_with_underscores_is_ignored(endpoint: Endpoint) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.spec.port}") as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "digits"
        request.inputs["x"].CopyFrom(to_proto(np.ones(1, np.float32)))
        answer = call(request, timeout=60, metadata=[("user_id", "7")])
    assert answer.model_spec.version.value == 1


@pytest.mark.parametrize(
    "path",
    [
        "/monitoring/answers",
        "//monitoring/answers",
        "/monitoring//answers",
        "/monitoring/./answers",
        "/monitoring%2Fanswers",
        "/MONITORING/prometheus/metrics",
        "/%6donitoring/answers",
    ],
)
def test_what_is_for_the_operator_does_not_pass_the_gateway(endpoint: Endpoint, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close"
    answer = raw_answer(endpoint, head, "")
    status = int(answer.split()[1])
    assert status in {400, 404}, answer


def test_another_version_takes_over_without_a_failed_request(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    with Load(endpoint) as load:
        changed = endpoints.deploy("digits/2")
        until(lambda: "2" in load.versions)
        load.more()
        assert changed.revision.cause == "deploy digits/2: replaces 1=100"
        rolled = changed.rollback()
        changed.wait()
        until(lambda: changed.status.routed == rolled.number)
        load.more()
    assert load.failures == []
    until(lambda: list(endpoint.services) == [1])
    assert versions_of([predict(endpoint)]) == {"1": 1}


def test_a_version_that_cannot_be_loaded_gets_no_traffic(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    folder = write_version(endpoints.workspace, 9, "damaged")
    try:
        with Load(endpoint) as load:
            endpoints.deploy("digits/9", wait=False)
            until(lambda: "version 9" in (endpoint.status.message or ""))
            load.more()
            endpoint.rollback()
            until(lambda: list(endpoint.services) == [1])
        assert load.failures == []
        assert load.versions == {"1"}
    finally:
        shutil.rmtree(folder)


def test_a_change_is_in_effect_once_it_is_waited_for(endpoint: Endpoint) -> None:
    for number in (2, 1) * 5:
        endpoint.split({number: 100})
        endpoint.wait()
        assert versions_of([predict(endpoint)]) == {str(number): 1}


def test_a_change_is_not_in_effect_before_the_gateway_has_it(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    endpoint.split({1: 50, 2: 50})
    endpoint.wait()  # until both versions are ready
    endpoints.kill(gateway.SERVICE, signal.SIGSTOP)
    try:
        endpoint.split({2: 100})
        # A stopped process still accepts connections.
        with pytest.raises(ServingError, match="not ready after 3 s"):
            endpoint.wait(3)
    finally:
        endpoints.kill(gateway.SERVICE, signal.SIGCONT)
    endpoint.wait()
    assert versions_of([predict(endpoint)]) == {"2": 1}


def test_a_split_distributes_requests(endpoint: Endpoint) -> None:
    endpoint.split({1: 50, 2: 50})
    endpoint.wait()
    counts = versions_of([predict(endpoint) for _ in range(60)])
    assert set(counts) == {"1", "2"}
    assert min(counts.values()) > 10


def test_labels_headers_and_sticky_clients_choose_a_version(endpoint: Endpoint) -> None:
    chosen = rules(
        ["stable=1", "canary=2"], ["x-team=vision:2"], cookie=None, header="x-user", shadow=None
    )
    made = endpoint.split({1: 50, 2: 50}, **chosen)
    assert made.cause == "split 1=50 2=50 labels matches sticky"
    assert endpoint.split(**chosen) == made
    endpoint.wait()
    for version in (1, 2):
        url = f"{endpoint.url}/v1/models/digits/versions/{version}:predict"
        answers = [httpx.post(url, json={"instances": [1.0]}) for _ in range(8)]
        assert versions_of(answers) == {str(version): 8}
    assert httpx.get(f"{endpoint.url}/monitoring/prometheus/metrics").status_code == 404
    endpoint.wait()
    canary = [predict(endpoint, headers={"x-timonel-label": "canary"}) for _ in range(5)]
    v1 = f"{endpoint.url}/v1/models/digits/labels/canary"
    canary += [httpx.post(f"{v1}:predict", json={"instances": [1.0]}) for _ in range(5)]
    described = [f"{v1}/metadata", f"{endpoint.url}/v2/models/digits/versions/canary"]
    for answer in map(httpx.get, described):
        assert (answer.status_code, answer.headers["x-timonel-version"]) == (200, "2")
    assert versions_of(canary) == {"2": 10}
    unknown = httpx.post(f"{endpoint.url}/v1/models/digits/labels/nobody:predict", json={})
    assert unknown.status_code == 400
    unknown = predict(endpoint, headers={"x-timonel-label": "nobody"})
    assert unknown.status_code == 400
    assert unknown.json()["error"] == "this endpoint has no such label"
    vision = [predict(endpoint, headers={"x-team": "vision"}) for _ in range(5)]
    assert versions_of(vision) == {"2": 5}
    by_user = [
        versions_of([predict(endpoint, headers={"x-user": f"u{user}"}) for _ in range(3)])
        for user in range(20)
    ]
    assert all(len(counts) == 1 for counts in by_user)
    assert {next(iter(counts)) for counts in by_user} == {"1", "2"}


def test_a_cookie_keeps_a_client_on_its_version(endpoint: Endpoint) -> None:
    endpoint.split({1: 50, 2: 50}, sticky={"cookie": "version"})
    endpoint.wait()
    chosen = collections.Counter[str]()
    for _ in range(12):
        with httpx.Client() as client:
            url = f"{endpoint.url}/v1/models/digits:predict"
            answers = [client.post(url, json={"instances": [1.0]}) for _ in range(4)]
        (version,) = versions_of(answers)
        chosen[version] += 1
    assert set(chosen) == {"1", "2"}


def test_shadow_traffic_reaches_a_version_that_does_not_answer(endpoint: Endpoint) -> None:
    endpoint.split(shadow={"version": 2})
    endpoint.wait()
    address = endpoint.services[2].ready[0].addresses["http"]

    def copies() -> float:
        with httpx.Client(transport=httpx.HTTPTransport(uds=address.removeprefix("unix:"))) as ask:
            body = ask.get("http://localhost/monitoring/prometheus/metrics").content
        totals = parse_totals(body, 0.0)
        assert totals is not None
        return totals.requests

    before = copies()
    assert versions_of([predict(endpoint) for _ in range(10)]) == {"1": 10}
    until(lambda: copies() == before + 10, timeout_s=20, seen=lambda: (before, copies()))


def test_requests_to_an_idle_endpoint_wait_for_a_replica(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    endpoints.to_zero(endpoint)
    body = b'{"instances": [' + b", ".join([b"1.0"] * 1_000_000) + b"]}"
    with ThreadPoolExecutor(30) as pool:
        small = [pool.submit(predict, endpoint) for _ in range(20)]
        large = [
            pool.submit(
                httpx.post, f"{endpoint.url}/v1/models/digits:predict", content=body, timeout=120
            )
            for _ in range(3)
        ]
        by_grpc = [pool.submit(ask_by_grpc, endpoint) for _ in range(5)]
        assert versions_of([each.result() for each in small]) == {"1": 20}
        assert [each.result().status_code for each in large] == [200] * 3
        assert [each.result() for each in by_grpc] == [1.0] * 5
    endpoints.wait_for_zero(endpoint)
    assert ask_by_grpc(endpoint) == 1.0


def test_load_adds_replicas(endpoints: Endpoints, endpoint: Endpoint) -> None:
    scaling = {**endpoint.spec.scaling.model_dump(), **IDLE, "target": 2.0}
    endpoint.change("eager", scaling=scaling)
    url = f"{endpoint.url}/v1/models/digits:predict"
    with ThreadPoolExecutor(8) as pool:
        # The model takes half a second for these.
        answers = [
            pool.submit(httpx.post, url, json={"instances": [1.5]}, timeout=60) for _ in range(100)
        ]
        until(lambda: len(endpoints.engine.service(service_name("digits", 1)).ready) >= 2)
        assert {each.result().status_code for each in answers} == {200}


def test_a_killed_control_plane_continues(endpoints: Endpoints, endpoint: Endpoint) -> None:
    with Load(endpoint) as load:
        for _ in range(2):
            before = endpoint.status.at
            assert endpoints.kill_control()
            load.more()
            until(lambda before=before: endpoint.status.at > before)  # type: ignore[misc]
        endpoints.deploy("digits/2")
        until(lambda: "2" in load.versions)
    assert load.failures == []


def test_a_killed_gateway_is_back_within_seconds(endpoints: Endpoints, endpoint: Endpoint) -> None:
    pids = endpoints.kill_gateway()
    until(lambda: endpoints.pids("endpoints-gateway") not in ([], pids))
    endpoint.wait(60)
    assert versions_of([predict(endpoint)]) == {"1": 1}


def test_a_stopped_supervisor_of_the_gateway_stops_nothing_else(
    endpoints: Endpoints, endpoint: Endpoint
) -> None:
    folder = ServiceFolder(endpoints.workspace.services / gateway.SERVICE)
    with stopped(endpoints.supervisor(gateway.SERVICE)):
        until(lambda: folder.status().state is ServiceState.UNRESPONSIVE)
        assert versions_of([predict(endpoint)]) == {"1": 1}
        endpoint.scale(2, 3)
        name = service_name("digits", 1)
        until(lambda: len(endpoints.engine.service(name).ready) == 2)
        until(lambda: endpoint.state == "ready")
    until(lambda: folder.status().state is ServiceState.ACTIVE)


def test_a_killed_replica_loses_no_request(endpoints: Endpoints, endpoint: Endpoint) -> None:
    endpoint.scale(2, 3)
    name = service_name("digits", 1)
    until(lambda: len(endpoints.engine.service(name).ready) == 2)
    with Load(endpoint) as load:
        endpoints.kill(name, signal.SIGKILL)  # both of them
        load.more(50)
    assert load.failures == []


def test_bad_changes_leave_the_endpoint_as_it_is(endpoints: Endpoints, endpoint: Endpoint) -> None:
    number = endpoint.revision.number
    with pytest.raises(NotFoundError, match="no version 77"):
        endpoints.deploy("digits/77")
    with pytest.raises(NotFoundError, match="no version 77"):
        endpoint.split({1: 50, 77: 50})
    with pytest.raises(SpecError, match="add up to 100"):
        endpoint.split({1: 50, 2: 49})
    with pytest.raises(SpecError, match="belongs to the gateway"):
        endpoints.deploy("digits/1", server_args=("--host", "0.0.0.0"))
    with pytest.raises(NotFoundError, match="no revision 999"):
        endpoint.rollback(999)
    with pytest.raises(ServingError, match="has the port"):
        endpoints.deploy("digits/1", name="other", port=endpoint.spec.port)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServingError, match=f"port {port} of 127.0.0.1 is in use"):
            endpoints.deploy("digits/1", name="other", port=port)
    assert endpoint.revision.number == number
    assert [each.name for each in list_endpoints(endpoints.workspace)] == ["digits"]


def test_the_host_header_of_another_site_is_refused(endpoint: Endpoint) -> None:
    url = f"{endpoint.url}/v1/models/digits"
    assert httpx.get(url, headers={"host": "localhost"}).status_code == 200
    refused = httpx.get(url, headers={"host": "evil.example"})
    assert (refused.status_code, "use localhost" in refused.json()["error"]) == (403, True)


def test_keys_are_required(endpoints: Endpoints, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# clients\nshop=0123456789abcdef\n")
    guarded = endpoints.deploy("digits/2", name="guarded", api_keys=keys)
    try:
        assert predict(guarded).status_code == 401
        assert predict(guarded, headers={"x-api-key": "wrong"}).status_code == 401
        right = {"x-api-key": "0123456789abcdef"}
        assert predict(guarded, headers=right).status_code == 200
        bearer = {"authorization": "Bearer 0123456789abcdef"}
        assert predict(guarded, headers=bearer).status_code == 200
        endpoints.deploy("digits/2", name="guarded", no_api_keys=True)
        until(lambda: predict(guarded).status_code == 200)
    finally:
        guarded.delete()
    with pytest.raises(NotFoundError, match="no such endpoint: guarded"):
        open_endpoint(endpoints.workspace, "guarded")


def test_predict_asks_the_endpoint_of_a_name(
    endpoints: Endpoints, endpoint: Endpoint, tmp_path: Path
) -> None:
    (answer,) = timonel.predict("digits", [{"x": 1.0}], workspace=endpoints.workspace)
    assert (answer.version, answer.outputs) == (1, {"y": 1.0})
    endpoints.to_zero(endpoint)
    notices: list[str] = []
    (answer,) = timonel.predict(
        "digits", [{"x": 2.0}], workspace=endpoints.workspace, notify=notices.append
    )
    assert (answer.version, answer.outputs, notices) == (1, {"y": 2.0}, [])
    keys = tmp_path / "keys"
    keys.write_text("shop=0123456789abcdef\n")
    endpoints.deploy("digits/1", api_keys=keys)
    until(lambda: predict(endpoint).status_code == 401)
    with pytest.raises(ServingError, match=r"authentication failed.*--api-key-file"):
        timonel.predict("digits", [{"x": 1.0}], workspace=endpoints.workspace)
    (answer,) = timonel.predict(
        "digits", [{"x": 1.0}], workspace=endpoints.workspace, api_key="0123456789abcdef"
    )
    assert answer.outputs == {"y": 1.0}
    endpoints.deploy("digits/1", no_api_keys=True, min_replicas=1)
    until(lambda: predict(endpoint).status_code == 200)


def test_keys_change_with_their_file(endpoints: Endpoints, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    old, new = {"x-api-key": "0123456789abcdef"}, {"x-api-key": "fedcba9876543210"}
    keys.write_text("shop=0123456789abcdef\n")
    guarded = endpoints.deploy("digits/2", name="guarded", api_keys=keys)
    try:
        assert predict(guarded, headers=old).status_code == 200
        keys.write_text("shop=fedcba9876543210\n")
        until(lambda: predict(guarded, headers=new).status_code == 200, 20)
        until(lambda: predict(guarded, headers=old).status_code == 401, 20)
        keys.write_text("shop=short\n")
        until(lambda: "they stay as they were" in (guarded.status.message or ""), 20)
        assert "line 1" in (guarded.status.message or "")
        before = guarded.status.at
        assert endpoints.kill_control()  # the next one finds the keys in Envoy's configuration
        until(lambda: guarded.status.at > before + 2)
        assert predict(guarded, headers=new).status_code == 200
        assert predict(guarded).status_code == 401
        assert "they stay as they were" in (guarded.status.message or "")
        # Other endpoints still change.
        other = endpoints.deploy("digits/3", name="other")
        assert predict(other).status_code == 200
        other.delete()
        keys.write_text("shop=0123456789abcdef\n")
        until(lambda: predict(guarded, headers=old).status_code == 200, 20)
        until(lambda: guarded.status.message is None, 20)
    finally:
        guarded.delete()


def test_two_changes_at_once_are_not_mixed(endpoint: Endpoint) -> None:
    before = endpoint.revision.number
    with ThreadPoolExecutor(4) as pool:
        changes = [pool.submit(endpoint.scale, 1, most) for most in (4, 5, 6, 7)]
    failed = [each.exception() for each in changes if each.exception() is not None]
    assert all(isinstance(error, EngineError) for error in failed)
    assert endpoint.revision.number == before + 4 - len(failed)


def test_arguments_reach_the_server(endpoints: Endpoints, endpoint: Endpoint) -> None:
    changed = endpoints.deploy("digits/1", server_args=(*SERVER_ARGS, "--max-body", "1KiB"))
    body = b'{"instances": [' + b", ".join([b"1.0"] * 1000) + b"]}"

    def status() -> int:
        url = f"{changed.url}/v1/models/digits:predict"
        return httpx.post(url, content=body, timeout=60).status_code

    until(lambda: status() == 413, seen=status)
    endpoints.deploy("digits/1")
    until(lambda: status() == 200, seen=status)


def served_certificate(endpoint: Endpoint) -> str:
    return ssl.get_server_certificate(("127.0.0.1", endpoint.spec.port), timeout=10)


def test_a_renewed_certificate_applies_without_a_deployment(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    authority = Authority()
    cert, key = authority.issue(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    secure = endpoints.deploy("digits/2", name="secure", tls_cert=cert, tls_key=key)
    body = {"instances": [1.0]}
    try:
        with httpx.Client(verify=trust, base_url=secure.url, timeout=60) as client:
            path = "/v1/models/digits:predict"
            assert client.post(path, json=body).status_code == 200
            before = cert.read_text()
            assert served_certificate(secure).strip() == before.strip()
            cert.write_text("damaged")
            until(lambda: "they stay as they were" in (secure.status.message or ""), 20)
            assert served_certificate(secure).strip() == before.strip()
            authority.issue(tmp_path, "server")
            until(lambda: served_certificate(secure).strip() == cert.read_text().strip(), 20)
            until(lambda: secure.status.message is None, 20)
            assert client.post(path, json=body).status_code == 200
        endpoints.deploy("digits/2", name="secure", no_tls=True)
        assert secure.url.startswith("http://")
        until(lambda: predict_if_open(secure) == 200)
    finally:
        secure.delete()


def predict_if_open(endpoint: Endpoint) -> int | None:
    """Return the status of a request; None while the listener still expects TLS."""
    try:
        return predict(endpoint).status_code
    except httpx.TransportError:
        return None


def test_a_bad_certificate_is_refused(endpoints: Endpoints, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text("no certificate")
    key.write_text("no key")
    with pytest.raises(SpecError, match="cannot use the certificate and private key"):
        endpoints.deploy("digits/2", name="secure", tls_cert=cert, tls_key=key)
    with pytest.raises(NotFoundError, match="no such endpoint"):
        open_endpoint(endpoints.workspace, "secure")


def test_a_port_that_was_taken_meanwhile_is_reported(endpoints: Endpoints) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec = EndpointSpec(
            name="late", model="digits", traffic=Traffic(percent={1: 100}), port=port,
            server_args=SERVER_ARGS,
        )  # fmt: skip
        record(endpoints.workspace, spec, "deploy", after=None)
        late = open_endpoint(endpoints.workspace, "late")
        try:
            with pytest.raises(ServingError, match=r"the gateway cannot listen for late: .*bind"):
                late.wait(60)
            assert late.state == "not listening"
        finally:
            late.delete()


def test_another_address_and_its_keys_apply_together(endpoints: Endpoints, tmp_path: Path) -> None:
    """The former listener, without keys, ends although both have the same port."""
    keys = tmp_path / "keys"
    keys.write_text("shop=0123456789abcdef\n")
    moved = endpoints.deploy("digits/2", name="moved")
    try:
        assert predict(moved).status_code == 200
        endpoints.deploy("digits/2", name="moved", host="0.0.0.0", api_keys=keys)
        url = f"http://127.0.0.1:{moved.spec.port}/v1/models/digits"

        def status() -> int | None:
            try:
                return httpx.get(url).status_code
            except httpx.HTTPError:
                return None  # the former listener ends

        until(lambda: status() == 401, seen=status)
        until(lambda: moved.state == "ready", seen=lambda: moved.status)
        assert httpx.get(url, headers={"x-api-key": "0123456789abcdef"}).status_code == 200
    finally:
        moved.delete()


def test_names_that_look_like_those_of_parts(endpoints: Endpoints) -> None:
    """An endpoint may have the name of a service, a listener or a folder of the gateway."""
    names = ("digits-v2", "hold", "ready", "gateway", "clusters", "listeners")
    made = [endpoints.deploy("digits/2", name=name) for name in names]
    try:
        assert [predict(each).status_code for each in made] == [200] * len(names)
        assert [each.revision.number for each in made] == [1] * len(names)
    finally:
        for each in made:
            each.delete()


def test_replicas_find_a_model_by_a_relative_path(
    endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wine/1").mkdir(parents=True)
    (tmp_path / "wine/1/saved_model.pb").write_text("1")
    monkeypatch.chdir(tmp_path)
    made = endpoints.deploy("./wine", name="wine", min_replicas=1, max_replicas=1)
    assert made.spec.model == str(tmp_path / "wine")
    answer = httpx.post(f"{made.url}/v1/models/wine:predict", json={"instances": [2.0]}, timeout=60)
    assert answer.json() == {"predictions": [2.0]}
    made.delete()


def test_rejected_server_arguments_end_the_wait(endpoints: Endpoints) -> None:
    wrong = (*SERVER_ARGS, "--max-body", "lots")
    with pytest.raises(ServingError, match=r"version 1 of wrong does not start: .*lots") as caught:
        endpoints.deploy("digits/1", name="wrong", server_args=wrong)
    assert "endpoints delete wrong" in str(caught.value)
    open_endpoint(endpoints.workspace, "wrong").delete()


def test_requests_to_a_version_that_cannot_start_do_not_wait(endpoints: Endpoints) -> None:
    folder = write_version(endpoints.workspace, 99, "damaged")
    made = endpoints.deploy("digits/99", name="damaged", wait=False)
    until(made.is_listening)
    url, json = f"{made.url}/v1/models/digits:predict", {"instances": [2.0]}
    answer = httpx.post(url, json=json, timeout=100)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "do not start: ended with exit code 8" in answer.json()["error"]
    assert str(folder.parent) not in answer.text
    began = time.monotonic()
    assert httpx.post(url, json=json, timeout=100).status_code == 503
    assert time.monotonic() - began < 5
    with pytest.raises(ServingError, match="version 99 of damaged does not start"):
        made.wait(timeout_s=100)
    (folder / "saved_model.pb").write_text("3")
    until(lambda: httpx.post(url, json=json, timeout=100).json() == {"predictions": [6.0]})
    made.delete()
