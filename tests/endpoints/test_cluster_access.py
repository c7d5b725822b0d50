"""Keys and certificates of endpoints on a cluster: what deployments record, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.tokens import elliptic, jwks
from tests.serving.auth.certificates import Authority
from timonel.endpoints import Endpoint, deploy
from timonel.endpoints.access_documents import AccessDocuments
from timonel.endpoints.engine import engine_of
from timonel.endpoints.folder import EndpointStatus, ObservedVersion
from timonel.endpoints.gateway.parts import Secrets
from timonel.errors import EngineError, ServingError, SpecError
from timonel.storage import Workspace
from timonel.storage.document_store import FolderDocuments

OLD, NEW = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture(autouse=True)
def _without_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("handle", "waiting"):
        monkeypatch.setattr(f"timonel.endpoints.{module}.run_control", lambda _place, _engine: None)
    monkeypatch.setattr(Endpoint, "control_failure", lambda _self: None)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    made.write_text(f"shop={OLD}\n")
    return made


@pytest.fixture
def confidential(tmp_path: Path) -> FolderDocuments:
    return FolderDocuments(tmp_path / "confidential")


def deployed(bucket: Workspace, model: str, **options: Any) -> Endpoint:
    return deploy(model, workspace=bucket, on="kubernetes", **{"wait": False, **options})


def contents(endpoint: Endpoint) -> Secrets:
    name = endpoint.spec.access.contents
    assert name is not None
    return AccessDocuments.of(engine_of(endpoint.workspace), endpoint.name).read(name)


def test_a_revision_names_the_contents_of_its_files(
    bucket: Workspace, model: str, tmp_path: Path, keys: Path
) -> None:
    cert, key = Authority().issue(tmp_path, "server")
    public = jwks(elliptic())
    (tmp_path / "jwks").write_text(public)
    made = deployed(
        bucket, model, tls_cert=cert, tls_key=key, api_keys=keys, jwt_issuer="me",
        jwt_jwks=tmp_path / "jwks",
    )  # fmt: skip
    found = contents(made)
    assert found.api_keys == {"shop": OLD}
    assert found.certificate == (Path(cert).read_text(), Path(key).read_text())
    assert found.jwks == public
    assert OLD not in made.revision.model_dump_json()
    assert made.url == f"https://digits.team.svc:{made.spec.port}"
    assert made.outside is not None
    assert made.outside.host == "digits.models.example.org"
    # Other settings keep them, also without the files.
    for path in (cert, key, keys, tmp_path / "jwks"):
        Path(path).unlink()
    before = made.spec.access
    deployed(bucket, model, timeout_s=10.0)
    made.scale(2, 3)
    assert made.spec.access == before


def test_changed_files_are_another_revision(bucket: Workspace, model: str, keys: Path) -> None:
    made = deployed(bucket, model, api_keys=keys)
    deployed(bucket, model, api_keys=keys)
    assert made.revision.number == 1
    keys.write_text(f"shop={NEW}\n")
    deployed(bucket, model, api_keys=keys)
    assert (made.revision.number, contents(made).api_keys) == (2, {"shop": NEW})


def test_a_rollback_keeps_the_present_keys(bucket: Workspace, model: str, keys: Path) -> None:
    made = deployed(bucket, model)
    deployed(bucket, model, api_keys=keys)
    keys.write_text(f"shop={NEW}\n")
    deployed(bucket, model, api_keys=keys)
    with pytest.raises(SpecError, match="no earlier revision to return to"):
        made.rollback()
    for number in (1, 2):
        made.rollback(number)
        assert contents(made).api_keys == {"shop": NEW}
    made.scale(1, 7)
    made.rollback()
    assert made.spec.scaling.max_replicas != 7
    assert contents(made).api_keys == {"shop": NEW}


def test_removed_access_control_leaves_the_contents_of_the_others(
    bucket: Workspace, model: str, tmp_path: Path, keys: Path
) -> None:
    cert, key = Authority().issue(tmp_path, "server")
    made = deployed(bucket, model, tls_cert=cert, tls_key=key, api_keys=keys)
    deployed(bucket, model, no_tls=True)
    assert contents(made) == Secrets(api_keys={"shop": OLD})
    assert made.url.startswith("http://")
    deployed(bucket, model, no_api_keys=True)
    assert made.spec.access.contents is None


def test_unusable_files_change_nothing(
    bucket: Workspace, model: str, keys: Path, confidential: FolderDocuments
) -> None:
    keys.write_text("shop=short")
    with pytest.raises(SpecError, match="with a key of 16 characters or more"):
        deployed(bucket, model, api_keys=keys)
    assert confidential.find() == []


def test_a_lost_race_leaves_no_contents(
    bucket: Workspace,
    model: str,
    keys: Path,
    confidential: FolderDocuments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = deployed(bucket, model, api_keys=keys)
    before = confidential.find()
    keys.write_text(f"shop={NEW}\n")

    def race(_workspace: Workspace) -> None:
        monkeypatch.undo()
        made.folder.add(made.spec.model_copy(update={"port": 9}), "other", after=1)

    monkeypatch.setattr("timonel.endpoints.handle.claim", race)
    with pytest.raises(EngineError, match="changed by another command"):
        deployed(bucket, model, api_keys=keys)
    assert confidential.find() == before


def test_contents_are_removed_with_the_endpoint(
    bucket: Workspace,
    model: str,
    keys: Path,
    confidential: FolderDocuments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = deployed(bucket, model, api_keys=keys)
    other = deployed(bucket, model, name="other", api_keys=keys)
    monkeypatch.setattr(
        "timonel.endpoints.handle.run_control", lambda _place, _engine: made.folder.remove()
    )
    made.delete()
    assert confidential.find() == [f"other/{other.spec.access.contents}.json"]


def test_a_deployment_waits_for_its_keys(bucket: Workspace, model: str, keys: Path) -> None:
    made = deployed(bucket, model, api_keys=keys)
    status = EndpointStatus(routed=1, applied=1, versions={3: ObservedVersion(ready=1)}, at=9e9)
    made.folder.write_status(status)
    with pytest.raises(ServingError, match="is not ready after 0 s"):
        made.wait(0.0)
    made.folder.write_status(status.model_copy(update={"contents": made.spec.access.contents}))
    made.wait(0.0)
