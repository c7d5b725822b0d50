"""Rights of users: those that the engine uses, and those of coordinators."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from tests.contracts.engines import eventually
from tests.engines.kubernetes.memory_api import MemoryApi
from tests.engines.kubernetes.specs import SETTINGS, WORKSPACE, spec
from timonel.engines import AutoscalerSpec, JobState, JobStatus, RoleSpec, ServiceSpec
from timonel.engines.kubernetes import KubernetesEngine, KubernetesServiceEngine
from timonel.engines.kubernetes.api_thread import ApiThread
from timonel.engines.kubernetes.coordinator_start import read_start
from timonel.engines.kubernetes.lease import LEASE_S, Lease, claim
from timonel.engines.kubernetes.manifests import job_manifests
from timonel.engines.kubernetes.names import STATUS_KEY
from timonel.engines.kubernetes.rights import (
    ClusterRight,
    coordinator_rules,
    service_rules,
    subject,
    user_manifests,
    user_rights,
)
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import NotFoundError, SpecError
from timonel.storage import find_workspace

_FINALIZERS = ClusterRight("batch", "jobs/finalizers", "update")
_PORT_FORWARD = {ClusterRight("", "pods/portforward", verb) for verb in ("create", "get")}


def _rights(rules: list[dict[str, list[str]]]) -> set[ClusterRight]:
    return {
        ClusterRight(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_users_have_the_rights_that_the_engine_uses_and_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    api = MemoryApi()
    engine = KubernetesEngine(find_workspace(f"memory://{uuid.uuid4().hex}"), api, SETTINGS)
    job = spec(RoleSpec(name="worker", replicas=3, min_replicas=1), job_id="one")
    engine.submit(job)
    assert engine.status("one").state is JobState.PENDING
    assert list(engine.logs("one")) == []
    assert [status.job_id for status in engine.jobs()] == ["one"]
    engine.scale("one", {"worker": 2})
    status = JobStatus.of(job, 1.0).model_copy(update={"state": JobState.FAILED})
    api.objects["ConfigMap", "one"]["data"][STATUS_KEY] = status.model_dump_json()
    engine.resume("one")
    engine.cancel("one")
    manifests = job_manifests(job, SETTINGS, WORKSPACE, "token", status)
    (role,) = [each for each in manifests if each["kind"] == "Role"]
    _manage_services(api, uses_engine=True)
    confidential = KubernetesServiceEngine(api, SETTINGS).confidential("endpoints")
    confidential.create_bytes("digits/a.json", b"{}")
    assert confidential.find("digits") == ["digits/a.json"]
    confidential.remove("digits/a.json")
    given = _rights(role["rules"]) | _rights(service_rules())
    assert set(user_rights()) == api.used | given | {_FINALIZERS} | _PORT_FORWARD


def test_coordinators_have_the_rights_that_they_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    workspace = find_workspace(f"memory://{uuid.uuid4().hex}")
    api = MemoryApi()
    job = spec(job_id="one")
    KubernetesEngine(workspace, api, SETTINGS).submit(job)
    on_lost_node = {
        "metadata": {
            "name": "one-worker-0-abcde",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"containers": [{}]},
        "status": {"phase": "Running"},
    }
    api.objects["Pod", "one-worker-0-abcde"] = on_lost_node
    api.objects["Lease", "one"]["spec"] = claim("one-0-gone", LEASE_S)
    api.used.clear()
    lease = Lease(api, "one", "one-0-abcde")
    lease.acquire()
    api.objects["Lease", "one"]["spec"] = claim("one-0-abcde", LEASE_S)
    assert read_start(api, "one", workspace.uri) is not None
    thread = ApiThread(api, "one", lease)
    thread.publish(JobStatus.of(job, 1.0).model_copy(update={"state": JobState.STARTING}))
    thread.resize({"worker": 2})
    thread.expect(["worker-0"])
    thread.start()
    eventually(lambda: ClusterRight("", "pods", "delete") in api.used)
    thread.close(10.0)
    lease.release()
    assert api.used == _rights(coordinator_rules("one", ["one", "one-worker"]))


def test_services_have_the_rights_to_manage_services() -> None:
    api = MemoryApi()
    _manage_services(api, uses_engine=False)
    finalizers = ClusterRight("apps", "deployments/finalizers", "update")
    assert api.used | {finalizers} == _rights(service_rules())


@pytest.mark.parametrize("gateway", [None, "web"])
def test_routes_to_endpoints_need_rights_of_their_own(gateway: str | None) -> None:
    api = MemoryApi()
    routed = ClusterSettings(domain="example.org", gateway=gateway)
    for settings, port in ((routed, 8500), (routed, 8501), (ClusterSettings(), 8501)):
        KubernetesServiceEngine(api, settings).expose("web", "web", port, has_tls=False)
    group = "networking.k8s.io" if gateway is None else "gateway.networking.k8s.io"
    added = {right for right in _rights(service_rules(has_routes=True)) if right.group == group}
    assert api.used - _rights(service_rules()) == added
    assert set(user_rights(has_routes=True)) >= added


def _manage_services(api: MemoryApi, *, uses_engine: bool) -> None:
    """Use all methods of an engine in a pod."""
    engine = KubernetesServiceEngine(api, SETTINGS, pod="web-1")
    service = ServiceSpec(name="web", module="web", uses_engine=uses_engine)
    engine.apply(service)
    engine.apply(service.model_copy(update={"revision": 2}))
    engine.scale("web", 2)
    ended = {"exitCode": 137, "finishedAt": "2026-01-01T00:00:00Z"}
    pod = {
        "metadata": {
            "name": "web-1",
            "uid": "1",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"timonel.dev/service": "web", "timonel.dev/revision": "1"},
        },
        "spec": {"containers": [{}]},
        "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
    }
    api.objects["Pod", "web-1"] = pod
    for _ in range(2):
        assert [status.name for status in engine.services()] == ["web"]
    lines = engine.logs("web", "web-1", follow=True)
    del api.objects["Pod", "web-1"]
    assert list(lines) == []
    eventually(lambda: engine.leads("web"))
    engine.expose("web", "web", 8500, has_tls=False)
    engine.expose("web", "web", 8501, has_tls=False)
    engine.conceal("web")
    documents = engine.documents("endpoints")
    documents.write_bytes("digits/a.json", b"{}")
    documents.write_bytes("digits/a.json", b"[]")
    documents.append_line("digits/b.jsonl", "{}")
    command = KubernetesServiceEngine(api, SETTINGS).documents("endpoints")
    assert command.read_bytes("digits/a.json") != b""
    with pytest.raises(NotFoundError):
        engine.confidential("endpoints").read_bytes("digits/a.json")
    documents.remove("digits")
    api.objects.clear()
    engine.apply(service)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.objects["Deployment", "web"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.objects["Pod", "web-1"] = {**pod, "status": {}}
    fresh = KubernetesServiceEngine(api, SETTINGS, pod="web-1")
    assert len(fresh.services()) == 1
    fresh.close()
    api.objects.clear()
    engine.apply(service)
    rules = AutoscalerSpec(least=1, most=2, metrics=())
    for each in (rules, rules, None):
        engine.autoscale("web", each)
    engine.apply(service)
    engine.delete("web")
    engine.close()


def test_the_role_has_these_rights_and_the_binding_names_it() -> None:
    role, binding = user_manifests("team", [subject("User", "ana@example.org", "team")])
    assert _rights(role["rules"]) == set(user_rights())
    assert "*" not in str(role)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {each["metadata"]["namespace"] for each in (role, binding)} == {"team"}
    assert user_manifests("team", []) == [role]


def test_users_may_forward_ports_of_endpoints() -> None:
    reads = {ClusterRight("", "services", "get"), ClusterRight("apps", "deployments", "get")}
    pods = {ClusterRight("", "pods", verb) for verb in ("get", "list", "watch")}
    assert set(user_rights()) >= _PORT_FORWARD | reads | pods
    assert not _rights(service_rules()) & _PORT_FORWARD


def test_a_binding_for_each_subject() -> None:
    subjects = [
        subject("User", "ana@example.org", "team"),
        subject("User", "Ana@example.org", "team"),
        subject("Group", "ana@example.org", "team"),
        subject("ServiceAccount", "newcomer:ana", "team"),
        subject("User", "https://login.example.org/realms/machine-learning#ana", "team"),
        subject("User", "名前", "team"),
    ]
    role, *bindings = user_manifests("team", subjects)
    assert [each["subjects"] for each in bindings] == [[each] for each in subjects]
    assert {each["roleRef"]["name"] for each in bindings} == {role["metadata"]["name"]}
    names = [each["metadata"]["name"] for each in bindings]
    assert len(set(names)) == len(subjects)
    for name in names:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 63
    assert names[0].startswith("timonel-user-ana-example-org-")
    assert names[3].startswith("timonel-user-newcomer-ana-")
    (again,) = user_manifests("team", subjects[3:4])[1:]
    assert again == bindings[3]


def test_subjects() -> None:
    assert subject("Group", "ml", "team")["apiGroup"] == "rbac.authorization.k8s.io"
    own = {"kind": "ServiceAccount", "name": "ci", "namespace": "team"}
    assert subject("ServiceAccount", "ci", "team") == own
    assert subject("ServiceAccount", "build:ci", "team") == {**own, "namespace": "build"}
    with pytest.raises(SpecError, match="the User has no name"):
        subject("User", "", "team")


@pytest.mark.parametrize("name", ["build:", ":ci", ":", "system:serviceaccount:build:ci"])
def test_a_service_account_has_a_name_and_a_namespace(name: str) -> None:
    with pytest.raises(SpecError, match=f"NAME or NAMESPACE:NAME, got '{name}'"):
        subject("ServiceAccount", name, "team")
