"""What browsers send for foreign web pages is refused, on every path of the REST port."""

from __future__ import annotations

import contextlib
import http.client
import json

import pytest
from pydantic import ValidationError

from timonel.serving.auth.origin_check import hosts_for, refused
from timonel.serving.launch import launch
from timonel.serving.settings.auth import AccessSettings
from timonel.serving.settings.models import ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import RestSettings, ServerSettings

LOCAL = hosts_for("127.0.0.1", "127.0.0.1", ())


def headers(**values):
    return [(name.encode(), value.encode()) for name, value in values.items()]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8501",
        "127.0.0.1:8501",
        "127.9.9.9",
        "[::1]:8501",
        "LOCALHOST:1",
        "models.localhost",
        "localhost.:8501",
    ],
)
def test_loopback_names_are_answered(host):
    assert refused("GET", headers(host=host), LOCAL) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8501",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "[fe80::1]",
        "[",
        "::1",
        "evil.example@127.0.0.1",
    ],
)
def test_other_names_are_refused_on_a_loopback_address(host):
    assert "--allow-host" in refused("GET", headers(host=host), LOCAL)
    assert refused("GET", headers(host=host), hosts_for("192.0.2.1", "0.0.0.0", ())) is None


def test_names_can_be_allowed():
    hosts = hosts_for("::1", "My-Machine", ("models.example",))
    for host in ("my-machine:8501", "MODELS.example", "localhost"):
        assert refused("GET", headers(host=host), hosts) is None
    assert refused("GET", headers(host="other.example"), hosts)


def test_pages_of_an_allowed_host_are_answered_behind_a_proxy():
    hosts = hosts_for("127.0.0.1", "127.0.0.1", ("models.example",))
    for host in ("127.0.0.1:8501", "models.example"):
        sent = headers(host=host, origin="https://models.example")
        assert refused("POST", sent, hosts) is None
        assert refused("POST", headers(host=host, origin="https://evil.example"), hosts)


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "*", "", "a b"])
def test_what_is_no_host_name_cannot_be_allowed(name):
    with pytest.raises(ValidationError, match="expected a host name"):
        AccessSettings(allowed_hosts=(name,))


def test_clients_without_a_host_header_are_no_browsers():
    assert refused("POST", [], LOCAL) is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://localhost:1234",
        "http://localhost",
        "https://models.example:1",
        "x",
    ],
)
def test_pages_of_other_origins_are_refused(method, origin):
    sent = headers(host="localhost:8501", origin=origin)
    for hosts in (LOCAL, None):
        assert "Cross-origin" in refused(method, sent, hosts)
        assert refused(method, sent, hosts, cors=True) is None
        assert refused("GET", sent, hosts) is None
        assert refused("OPTIONS", sent, hosts) is None


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_pages_of_the_server_itself_are_answered(scheme):
    sent = headers(host="localhost:8501", origin=f"{scheme}://localhost:8501")
    assert refused("POST", sent, LOCAL) is None


@contextlib.contextmanager
def serving(workspace, **changes):
    folder = workspace.models / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text("2")
    models = (ModelSettings(name="m", base_path=str(workspace.models / "m")),)
    settings = ServerSettings(
        models=models, rest_port=0, grpc_port=None, runtime=RuntimeSettings(name="fake"), **changes
    )
    with launch(settings, workspace) as server:
        yield server


def ask(server, method, path, body=None, **sent):
    connection = http.client.HTTPConnection(server.rest_url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        return response.status, response.read()


PATHS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m/metadata"),
    ("POST", "/v1/models/m:predict"),
    ("POST", "/v2/models/m/infer"),
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
]


@pytest.mark.process
def test_a_server_on_loopback(workspace, fake_runtime):
    body = b'{"instances": [1]}'
    with serving(workspace) as server:
        for method, path in PATHS:
            sent = body if method == "POST" else None
            status, answer = ask(server, method, path, sent, Host="evil.example")
            assert status == 403, path
            assert "evil.example" in json.loads(answer)["error"]
            assert str(workspace.root).encode() not in answer
            assert ask(server, method, path, sent)[0] != 403, path
        plain = {"Content-Type": "text/plain"}
        path = "/v1/models/m:predict"
        assert ask(server, "POST", path, body, Origin="http://evil.example", **plain)[0] == 403
        assert ask(server, "POST", path, body, Origin=server.rest_url)[0] == 200


@pytest.mark.process
def test_hosts_and_origins_can_be_allowed(workspace, fake_runtime):
    access = AccessSettings(allowed_hosts=("models.example",))
    with serving(workspace, access=access, rest=RestSettings(cors=True)) as server:
        path, body = "/v1/models/m:predict", b'{"instances": [1]}'
        assert ask(server, "POST", path, body, Host="models.example")[0] == 200
        assert ask(server, "POST", path, body, Origin="http://evil.example")[0] == 200
        assert ask(server, "POST", path, body, Host="evil.example")[0] == 403
