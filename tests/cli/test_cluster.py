"""``timonel cluster``: rights, node pools, and checks of what jobs need."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Timonel
from tests.containers.registry_server import registry_server
from tests.engines.kubernetes.memory_api import MemoryApi
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.rights import ClusterRight, user_rights
from timonel.errors import NotFoundError


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, here: object) -> MemoryApi:
    """The user's cluster."""
    for name in ("IMAGE", "SECRET", "IMAGE_PULL_SECRET", "SERVICE_ACCOUNT"):
        monkeypatch.delenv(f"TIMONEL_KUBERNETES_{name}", raising=False)
    api = MemoryApi()
    monkeypatch.setattr(Api, "connect", lambda _: api)
    return api


def checked(timonel: Timonel, *words: str) -> tuple[int, dict[str, Mapping[str, str]]]:
    """Return the exit code of the check and its results by name."""
    outcome = timonel("-w", f"memory://{uuid.uuid4().hex}", "cluster", "check", "--json", *words)
    value = json.loads(outcome.out)
    assert value["ready"] == (outcome.exit_code == 0)
    return outcome.exit_code, {each["name"]: each for each in value["checks"]}


@pytest.mark.enable_socket
def test_a_cluster_that_has_everything(
    timonel: Timonel, api: MemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_SECRET", "keys")
    api.objects["Secret", "keys"] = {}
    with registry_server() as registry:
        registry.add_image("team/timonel", "1")
        monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", f"{registry.host}/team/timonel:1")
        code, found = checked(timonel)
        monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", f"{registry.host}/team/timonel:2")
        missing_code, missing = checked(timonel)
    assert {name: each["verdict"] for name, each in found.items()} == dict.fromkeys(found, "ok")
    assert code == 0
    assert found["server"]["found"] == "v1.37.0"
    assert "timonel@sha256:" in found["image"]["found"]
    assert found["rights"]["found"] == f"all {len(user_rights())} required rights granted"
    assert set(api.dry_runs) >= {"Job", "Role", "Secret"}
    assert set(api.objects) == {("Secret", "keys")}
    assert missing_code == 1
    assert "no image" in missing["image"]["found"]


@pytest.mark.enable_socket
def test_a_registry_without_tls(
    timonel: Timonel, api: MemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.containers.transport._RETRIES", False)
    with registry_server() as registry:
        registry.add_image("team/timonel", "1")
        image = f"0.0.0.0:{registry.server_port}/team/timonel:1"
        monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", image)
        _, found = checked(timonel)
        _, plain = checked(timonel, "--plain-http")
    assert found["image"]["verdict"] == "warn"
    assert "--plain-http" in found["image"]["hint"]
    assert found["image"]["hint"].endswith("; --run tries it from the cluster")
    assert plain["image"]["verdict"] == "ok"


def test_rights_that_are_lacking_are_named(timonel: Timonel, api: MemoryApi) -> None:
    api.denied = {ClusterRight("batch", "jobs", "create"), ClusterRight("", "pods/status", "patch")}
    code, found = checked(timonel)
    assert code == 1
    assert found["rights"]["found"] == "not allowed: pods/status (patch), jobs (create)"
    assert "timonel cluster rbac --namespace team" in found["rights"]["hint"]
    assert found["dry run"]["verdict"] == "fail"
    assert found["namespace"]["verdict"] == "ok"


def test_objects_that_the_settings_name(
    timonel: Timonel, api: MemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_SECRET", "keys")
    monkeypatch.setenv("TIMONEL_KUBERNETES_SERVICE_ACCOUNT", "trainer")
    api.denied = {ClusterRight("", "serviceaccounts", "get")}
    _, found = checked(timonel)
    assert found["Secret keys"]["verdict"] == "fail"
    assert found["ServiceAccount trainer"]["verdict"] == "note"
    assert found["image"]["found"] == "no image is set"
    assert found["image"]["hint"].startswith("make one with 'timonel image build'")


def test_no_cluster_and_no_bucket(timonel: Timonel, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_: object) -> Api:
        raise NotFoundError("no kubeconfig", hint="get one")

    monkeypatch.setattr(Api, "connect", connect)
    monkeypatch.delenv("TIMONEL_KUBERNETES_IMAGE", raising=False)
    outcome = timonel("cluster", "check")
    assert outcome.exit_code == 1
    for part in ("FAIL kubeconfig", "get one", "the workspace is not in a bucket", "3 fail"):
        assert part in outcome.out


def test_rbac_prints_what_kubectl_applies(
    timonel: Timonel, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = timonel("cluster", "rbac", "--namespace", "team", "--user", "ana", "--group", "ml")
    role, *bindings = yaml.safe_load_all(outcome.out)
    assert sum(len(rule["verbs"]) for rule in role["rules"]) == len(user_rights())
    assert [binding["subjects"][0]["name"] for binding in bindings] == ["ana", "ml"]
    monkeypatch.setenv("TIMONEL_KUBERNETES_NAMESPACE", "lab")
    (only,) = json.loads(timonel("cluster", "rbac", "--json").out)["items"]
    assert (only["kind"], only["metadata"]["namespace"]) == ("Role", "lab")


def test_routes_of_endpoints_are_checked_and_allowed(
    timonel: Timonel, api: MemoryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_DOMAIN", "models.example.org")
    monkeypatch.setenv("TIMONEL_KUBERNETES_GATEWAY", "infra/web")
    api.unknown = {"HTTPRoute"}
    _, found = checked(timonel)
    assert found["route"]["verdict"] == "fail"
    assert "kubectl api-resources" in found["route"]["hint"]
    api.unknown = set()
    _, found = checked(timonel)
    assert found["route"]["found"] == "HTTPRoute accepted"
    api.denied = {ClusterRight("gateway.networking.k8s.io", "httproutes", "create")}
    _, found = checked(timonel)
    assert found["rights"]["found"] == "not allowed: httproutes (create)"
    (role,) = yaml.safe_load_all(timonel("cluster", "rbac").out)
    assert "httproutes" in str(role)


def test_rbac_uses_the_namespace_of_the_context(
    timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kubernetes")
    for name in ("CONTEXT", "NAMESPACE"):
        monkeypatch.delenv(f"TIMONEL_KUBERNETES_{name}", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(here / "config"))

    def namespace() -> str:
        (role,) = yaml.safe_load_all(timonel("cluster", "rbac").out)
        return str(role["metadata"]["namespace"])

    assert namespace() == "default"
    context = {"name": "lab", "context": {"cluster": "lab", "user": "ana", "namespace": "team"}}
    (here / "config").write_text(json.dumps({"current-context": "lab", "contexts": [context]}))
    assert namespace() == "team"
    monkeypatch.setenv("TIMONEL_KUBERNETES_CONTEXT", "prod")
    refused = timonel("cluster", "rbac", "--user", "ana")
    assert (refused.exit_code, "no context 'prod'" in refused.error_line) == (2, True)


@pytest.mark.parametrize("command", ["check", "rbac", "plan"])
def test_the_list_of_commands_shows_whole_descriptions(timonel: Timonel, command: str) -> None:
    (line,) = [
        line for line in timonel("cluster", "--help").out.splitlines() if f"  {command} " in line
    ]
    assert line.endswith(".")
    assert not line.endswith("...")


def test_plan_prints_commands_with_comments(timonel: Timonel) -> None:
    arguments = ("--on", "gke", "--gpu", "a100:2", "--tpu", "v5e-8", "--nodes", "0:5")
    out = timonel("cluster", "plan", *arguments, "--cluster", "lab").out
    assert out.count("gcloud container node-pools create ") == 2
    assert "#     --accelerator nvidia.com/gpu=2 \\\n" in out
    assert "#     --toleration nvidia.com/gpu:NoSchedule\n" in out
    pools = json.loads(timonel("cluster", "plan", *arguments, "--json").out)["pools"]
    assert [pool["name"] for pool in pools] == ["a100-x2", "v5e-8"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "nothing to plan"),
        (("--gpu", "t4", "--tpu", "v5e-1", "--name", "a"), "--gpu and --tpu are two"),
        (("--gpu", "k80"), "no machine of gke is known"),
        (("--gpu", "t4", "--nodes", "9:1"), "expected MIN:MAX nodes"),
    ],
)
def test_plans_that_are_refused(timonel: Timonel, words: tuple[str, ...], problem: str) -> None:
    outcome = timonel("cluster", "plan", "--on", "gke", *words)
    assert outcome.exit_code == 2
    assert problem in outcome.error_line
