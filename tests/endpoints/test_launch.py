"""Options of deployments and the revisions that they make; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.harness import write_version
from tests.endpoints.tokens import elliptic, jwks
from tests.serving.auth.certificates import Authority
from timonel.endpoints import Endpoint, deploy, list_endpoints
from timonel.endpoints.spec import Traffic
from timonel.errors import InputError, Interrupted, NotFoundError, SpecError
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


def test_one_machine_has_no_autoscaler_of_a_cluster(workspace: Workspace, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "algorithm: cluster\nmin_replicas: 1\nmax_replicas: 2\ncluster_metrics: [{type: Pods}]\n"
    )
    with pytest.raises(SpecError, match="only a cluster has a HorizontalPodAutoscaler"):
        deploy("digits/1", workspace=workspace, wait=False, policy=policy)
    assert list_endpoints(workspace) == []
    made = deploy("digits/1", workspace=workspace, wait=False)
    scaling = {
        "algorithm": "cluster",
        "min_replicas": 1,
        "max_replicas": 2,
        "cluster_metrics": ({"type": "Pods"},),
    }
    with pytest.raises(SpecError, match="only a cluster has a HorizontalPodAutoscaler"):
        made.change("policy", scaling=scaling)
    assert made.revision.number == 1


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
        ({"jwt_claim": ("scope=a",)}, "an audience or a claim needs an issuer"),
        ({"jwt_issuer": "i", "jwt_jwks": "k", "jwt_claim": ("a=",)}, "expected --jwt-claim CLAIM="),
        ({"rate_limit": "fast"}, "limits.rate: expected a rate such as 100/s"),
        ({"trust_proxy": ("proxy",)}, "access.proxies.0: expected a network"),
        (
            {"server_args": ("--rate-limit", "5/s:5")},
            "the argument --rate-limit belongs to the gateway",
        ),
        (
            {"server_args": ("--allow-reload",)},
            "the argument --allow-reload belongs to the gateway",
        ),
        ({"server_args": ("--no-such",)}, "servers have no option --no-such"),
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


def test_without_a_version_an_endpoint_keeps_its_traffic(workspace: Workspace) -> None:
    write_version(workspace, 2)
    write_version(workspace, 3)
    made = deploy("digits/1", workspace=workspace, wait=False)
    made.split({1: 90, 2: 10}, labels={"canary": 2}, shadow={"version": 3})
    traffic = made.spec.traffic
    deploy("digits", workspace=workspace, wait=False, max_replicas=7, timeout_s=10.0)
    assert made.spec.traffic == traffic
    assert made.spec.scaling.max_replicas == 7
    assert made.revision.cause == "deploy digits: with --max, --timeout-s"
    deploy("digits", workspace=workspace, wait=False, min_replicas=0, no_tls=False)
    assert made.revision.cause == "deploy digits: with --min"


def test_with_a_version_an_endpoint_gives_it_all_requests(workspace: Workspace) -> None:
    write_version(workspace, 2)
    made = deploy("digits/1", workspace=workspace, wait=False)
    assert made.revision.cause == "deploy digits/1"
    made.split({1: 90, 2: 10}, labels={"canary": 2}, shadow={"version": 2})
    deploy("digits/2", workspace=workspace, wait=False, server_args=("--max-body", "1KiB"))
    assert made.spec.traffic.percent == {2: 100}
    assert made.spec.traffic.labels == {"canary": 2}
    assert made.spec.traffic.shadow is None
    assert made.revision.cause == "deploy digits/2: replaces 1=90 2=10, with server arguments"


def test_another_model_starts_with_its_newest_version_and_without_rules(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = deploy("digits/1", workspace=workspace, wait=False)
    made.split(labels={"canary": 1})
    (tmp_path / "wine/5").mkdir(parents=True)
    (tmp_path / "wine/5/saved_model.pb").touch()
    monkeypatch.chdir(tmp_path)
    deploy("wine", workspace=workspace, name="digits", wait=False)
    assert made.spec.model == str(tmp_path / "wine")
    assert made.spec.traffic == Traffic(percent={5: 100})
    assert made.revision.cause == "deploy wine: replaces 1=100"


def test_an_interrupted_wait_tells_how_to_go_on(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_self: Endpoint, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Endpoint, "wait", interrupt)
    with pytest.raises(Interrupted, match="endpoints delete digits"):
        deploy("digits/1", workspace=workspace)
    assert Endpoint(workspace, "digits").revision.number == 1


def test_a_full_disk_leaves_no_endpoint(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, _content: bytes) -> None:
        raise InputError("cannot write: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("timonel.storage.document_store.create_bytes", fail)
        with pytest.raises(InputError, match="No space left"):
            deploy("digits/1", workspace=workspace, wait=False)
    assert list_endpoints(workspace) == []
    assert not (workspace.endpoints / "digits").exists()
    (workspace.endpoints / "killed/revisions").mkdir(parents=True)
    assert list_endpoints(workspace) == []
    made = deploy("digits/1", workspace=workspace, wait=False)
    assert list_endpoints(workspace) == [made]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "my endpoint"}, "--name: expected lowercase letters.*, got 'my endpoint'"),
        ({"port": 99999}, "--port: expected a number from 1 to 65535, got 99999"),
        ({"memory": "lots"}, "--memory: expected a size.*'lots'"),
        ({"policy": "/nope.yaml"}, "cannot read the policy /nope.yaml: No such file"),
    ],
)
def test_errors_name_the_option(
    workspace: Workspace, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        deploy("digits/1", workspace=workspace, wait=False, **options)
    assert "[Errno" not in str(caught.value)
    assert list_endpoints(workspace) == []


def test_an_unknown_model_creates_no_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIMONEL_WORKSPACE", raising=False)
    with pytest.raises(NotFoundError, match="no workspace"):
        deploy("nope")
    assert not list(tmp_path.iterdir())


def test_rates_and_tokens_of_a_remote_issuer(workspace: Workspace) -> None:
    keys = "https://id.example/keys"
    made = deploy(
        "digits/1", workspace=workspace, wait=False, jwt_issuer="me", jwt_jwks=keys,
        jwt_claim=("scope=predict", "team=a=b"), rate_limit="100/s:20", total_rate_limit="9/h",
        trust_proxy=("10.0.0.0/8",),
    )  # fmt: skip
    assert made.spec.access.jwt is not None
    assert (made.spec.access.jwt.jwks, made.spec.access.proxies) == (keys, ("10.0.0.0/8",))
    assert made.spec.access.jwt.claims == {"scope": "predict", "team": "a=b"}
    assert (made.spec.limits.rate, made.spec.limits.total_rate) == ("100/s:20", "9/h")
    deploy("digits/1", workspace=workspace, wait=False, rate_limit="none")
    assert (made.spec.limits.rate, made.spec.limits.total_rate) == (None, "9/h")


def test_a_rollback_keeps_the_rates(workspace: Workspace) -> None:
    deploy("digits/1", workspace=workspace, wait=False)
    deploy("digits/1", workspace=workspace, wait=False, max_replicas=7)
    made = deploy("digits/1", workspace=workspace, wait=False, rate_limit="5/s:5")
    revision = made.rollback()
    assert revision.cause == "rollback to 1"
    assert revision.spec.scaling.max_replicas != 7
    assert revision.spec.limits.rate == "5/s:5"
    made = deploy("digits/1", workspace=workspace, wait=False, rate_limit="none")
    assert made.rollback(3).spec.limits.rate is None


def test_an_endpoint_of_a_folder_is_changed_by_its_name(
    workspace: Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere" / "half"
    folder.parent.mkdir()
    (workspace.models / "digits").rename(folder)
    made = deploy(str(folder / "1"), workspace=workspace, wait=False)
    assert made.name == "half"
    (tmp_path / "keys").write_text("shop=0123456789abcdef\n")
    changed = deploy("half", workspace=workspace, wait=False, api_keys=tmp_path / "keys")
    assert (changed.name, changed.revision.number) == ("half", 2)
    assert changed.spec.model == made.spec.model
    assert changed.spec.traffic == made.spec.traffic
    assert changed.spec.access.api_keys
    with pytest.raises(NotFoundError, match="no model 'other'"):
        deploy("other", workspace=workspace, wait=False)
