"""Options of deployments and the revisions that they make; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.harness import write_version
from tests.serving.auth.certificates import Authority
from tests.serving.auth.tokens import elliptic, jwks
from timonel.endpoints import Endpoint, deploy
from timonel.errors import SpecError
from timonel.storage import Workspace, find_workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr("timonel.endpoints.handle.run_control", lambda _workspace, _engine: None)
    made = find_workspace(tmp_path / ".timonel", create=True)
    write_version(made, 1)
    return made


def guarded(workspace: Workspace, folder: Path) -> dict[str, Any]:
    """Deploy an endpoint with all kinds of access control; return its access."""
    cert, key = Authority().issue(folder, "server")
    (folder / "keys").write_text("shop=0123456789abcdef\n")
    (folder / "jwks").write_text(jwks(elliptic()))
    made = deploy(
        "digits/1", workspace=workspace, wait=False, server_args=("--max-body", "1KiB"),
        tls_cert=cert, tls_key=key, api_keys=folder / "keys", jwt_issuer="me",
        jwt_jwks=folder / "jwks",
    )  # fmt: skip
    return access(made)


def access(endpoint: Endpoint) -> dict[str, Any]:
    return endpoint.spec.access.model_dump()


@pytest.mark.parametrize(
    ("option", "field"), [("no_tls", "tls"), ("no_api_keys", "api_keys"), ("no_jwt", "jwt")]
)
def test_access_control_is_kept_until_it_is_removed(
    workspace: Workspace, tmp_path: Path, option: str, field: str
) -> None:
    before = guarded(workspace, tmp_path)
    assert all(before[name] for name in ("tls", "api_keys", "jwt"))
    kept = deploy("digits/1", workspace=workspace, wait=False, timeout_s=10.0)
    assert access(kept) == before
    assert access(deploy("digits/1", workspace=workspace, wait=False, **{option: False})) == before
    after = deploy("digits/1", workspace=workspace, wait=False, **{option: True})
    assert access(after) == {**before, field: None}
    assert access(deploy("digits/1", workspace=workspace, wait=False)) == {**before, field: None}


def test_server_arguments_are_kept_until_they_are_removed(
    workspace: Workspace, tmp_path: Path
) -> None:
    guarded(workspace, tmp_path)
    made = deploy("digits/1", workspace=workspace, wait=False, timeout_s=10.0)
    assert made.spec.server_args == ("--max-body", "1KiB")
    deploy("digits/1", workspace=workspace, wait=False, no_server_args=True)
    assert made.spec.server_args == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no_tls": True, "tls_key": "k", "tls_cert": "c"}, "--no-tls contradicts --tls-cert"),
        ({"no_tls": True, "tls_key": "k"}, "--no-tls contradicts --tls-key"),
        ({"no_api_keys": True, "api_keys": "k"}, "--no-api-keys contradicts --api-keys"),
        ({"no_jwt": True, "jwt_audience": "a"}, "--no-jwt contradicts --jwt-audience"),
        (
            {"no_server_args": True, "server_args": ("--max-body", "1KiB")},
            "--no-server-args contradicts server arguments",
        ),
    ],
)
def test_contradictions_change_nothing(
    workspace: Workspace, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    guarded(workspace, tmp_path)
    with pytest.raises(SpecError, match=message):
        deploy("digits/1", workspace=workspace, wait=False, **options)
    assert Endpoint(workspace, "digits").revision.number == 1
