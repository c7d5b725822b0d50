"""Keys on the command line, and a server that asks for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from tests.serving.auth.certificates import Authority
from timonel.endpoints.deploy_options import DeployOptions
from timonel.errors import ServingError, SpecError
from timonel.options import flag_of, options_of
from timonel.serving import curl_example, predict, serve
from timonel.serving.serve_options import OF_ENDPOINTS
from timonel.serving.serve_settings import settings_of
from timonel.storage import find_workspace


def test_a_key_is_made_listed_and_revoked(timonel: Timonel, here: Path) -> None:
    made = timonel("keys", "create", "ci", "--admin", "--expires", "90d")
    key = made.out.strip()
    assert key.startswith("tml_")
    assert "\n" not in key
    file = here / ".timonel" / "api-keys.json"
    assert key.split("_", 2)[2] not in file.read_text()
    robot = timonel("keys", "create", "robot", "--json")
    assert json.loads(robot.out)["key"].startswith("tml_")
    (first, second) = json.loads(timonel("keys", "--json").out)["keys"]
    assert (first["name"], first["right"]) == ("ci", "admin")
    assert first["expires_at"] > first["created_at"]
    assert (second["name"], second["right"], second["expires_at"]) == ("robot", "use", None)
    listed = timonel("keys", "list").out
    assert "ci" in listed
    assert key not in listed
    assert timonel("keys", "revoke", "ci").exit_code == 0
    assert timonel("keys", "revoke", second["id"]).exit_code == 0
    assert "No keys." in timonel("keys").out


def test_mistakes_with_keys(timonel: Timonel, here: Path) -> None:
    assert "expected a duration" in timonel("keys", "create", "x", "--expires", "soon").err
    assert timonel("keys", "list", "--file", "nope.json").exit_code == 2
    assert timonel("keys", "revoke", "x", "--file", "nope.json").exit_code == 2
    assert not Path("nope.json").exists()
    assert "also has" not in timonel("keys", "create", "twin").err
    (first,) = json.loads(timonel("keys", "--json").out)["keys"]
    second = timonel("keys", "create", "twin")
    assert f"twin also has {first['id']}: 'timonel keys revoke ID'" in second.err
    assert "use one of the IDs" in timonel("keys", "revoke", "twin").error_line
    assert "has no key 'x'" in timonel("keys", "revoke", "x").error_line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tls_cert": Path("c")}, "--tls-cert requires --tls-key"),
        ({"tls_client_ca": Path("c")}, "--tls-client-ca requires --tls-cert"),
        ({"max_body": "much"}, "--max-body: expected a size such as"),
        ({"max_requests": 0}, "--max-requests must be"),
    ],
)
def test_options_that_do_not_go(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        settings_of((), options)  # type: ignore[arg-type]


def test_options_become_settings() -> None:
    settings = settings_of(
        (),
        {
            "tls_cert": Path("c.pem"),
            "tls_key": Path("/k.pem"),
            "max_body": "1MiB",
            "max_response": "2MiB",
            "max_receiving": "3MiB",
        },
    ).access
    assert settings.tls is not None
    assert settings.tls.certificate == str(Path.cwd() / "c.pem")
    limits = settings.limits
    assert (limits.max_body, limits.max_response, limits.max_receiving) == (2**20, 2**21, 3 * 2**20)
    none = dict.fromkeys(("max_body", "max_response", "max_receiving"), "none")
    unlimited = settings_of((), none).access.limits
    assert (unlimited.max_body, unlimited.max_response, unlimited.max_receiving) == (None,) * 3


@pytest.mark.parametrize("option", ["--jwt-issuer=https://x", *OF_ENDPOINTS])
def test_a_server_refers_to_endpoints_for_tokens_and_rates(timonel: Timonel, option: str) -> None:
    names = {flag_of(name, option) for name, (_, option) in options_of(DeployOptions).items()}
    assert option.partition("=")[0] in names
    done = timonel("serve", "m", option, "5/s")
    assert done.exit_code == 2
    assert done.error_line.startswith(f"error: {option.partition('=')[0]}: a server checks no")
    assert "timonel deploy" in done.err


@pytest.mark.process
@pytest.mark.usefixtures("fake_runtime")
def test_the_client_shows_a_key_and_checks_the_certificate(
    timonel: Timonel, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = find_workspace(here / ".timonel")
    version = workspace.models / "m" / "1"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_text("2")
    key = timonel("keys", "create", "me").out.strip()
    (here / "key.txt").write_text(key + "\n")
    authority = Authority()
    (here / "ca.pem").write_bytes(authority.pem)
    certificate, private = authority.issue(here, "server")
    with serve(
        "m",
        workspace=workspace,
        runtime="fake",
        rest_port=0,
        grpc_port=None,
        block=False,
        api_keys=workspace.root / "api-keys.json",
        tls_cert=certificate,
        tls_key=private,
    ) as server:
        line = curl_example(server, "m")
        assert '-H "Authorization: Bearer $TIMONEL_API_KEY" --cacert' in line
        assert server.caller.key is not None
        assert server.caller.key not in line + repr(server.caller) + server.logs()
        model = f"{server.rest_url}/v1/models/m"
        with pytest.raises(ServingError, match=r"is not trusted: .*--tls-ca"):
            predict(model, {"x": 1.0}, api_key=key)
        monkeypatch.setenv("TIMONEL_TLS_CA", str(here / "ca.pem"))
        with pytest.raises(ServingError, match="authentication failed"):
            predict(model, {"x": 1.0})
        with pytest.raises(ServingError, match="authentication failed"):
            predict("m", {"x": 1.0}, workspace=workspace)
        assert predict("m", {"x": 1.0}, workspace=workspace, api_key=key)[0].value == 2.0
        done = timonel("predict", model, '{"x": 1.0}', "--api-key-file", "key.txt", "--json")
        assert done.exit_code == 0, done.err
        assert json.loads(done.out)["predictions"][0]["outputs"] == {"y": 2.0}
        monkeypatch.setenv("TIMONEL_API_KEY", key)
        assert timonel("predict", "m", '{"x": 1.0}').exit_code == 0
    assert timonel("predict", "m", "1", "--api-key-file", "nope").exit_code == 2
