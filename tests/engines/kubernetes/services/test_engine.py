"""The service engine on a fake cluster: failures, foreign objects and requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contracts.engines import eventually
from tests.engines.kubernetes.fake_services import ServiceCluster
from tests.engines.kubernetes.services.harness import FakeHarness
from timonel.engines import AutoscalerSpec, ServiceSpec
from timonel.engines.kubernetes.manifests import Manifest
from timonel.engines.kubernetes.services import KubernetesServiceEngine
from timonel.engines.kubernetes.services.autoscaler import autoscaler
from timonel.engines.kubernetes.services.manifests import service_manifests
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import EngineError, NotFoundError, SpecError
from timonel.storage import find_workspace

pytestmark = pytest.mark.enable_socket


@pytest.fixture
def harness(engine: KubernetesServiceEngine, services: ServiceCluster) -> FakeHarness:
    return FakeHarness(engine, services)


@pytest.mark.process
def test_a_refused_service_leaves_nothing(harness: FakeHarness) -> None:
    refusals = harness.cluster.refusals
    refusals["poddisruptionbudgets"] = (403, "exceeded quota: small, requested: 1")
    with pytest.raises(EngineError, match="quota"):
        harness.engine.apply(harness.spec())
    eventually(lambda: not harness.leftovers())
    with pytest.raises(NotFoundError):
        harness.engine.service("web")
    refusals.clear()
    harness.apply()
    harness.close()


@pytest.mark.process
def test_an_unfinished_service_is_completed_by_another_apply(harness: FakeHarness) -> None:
    # As if the process had been killed after the first object.
    first = service_manifests(harness.spec(), ClusterSettings(image="registry.example/timonel:1"))
    path = "/apis/apps/v1/namespaces/team/deployments"
    harness.cluster.answer("POST", path, first[0])
    assert [status.requested for status in harness.engine.services()] == [1]
    harness.apply()
    assert ("poddisruptionbudgets", "web") in harness.cluster.objects
    harness.close()


@pytest.mark.process
def test_a_deployment_that_changes_all_the_time_is_changed(harness: FakeHarness) -> None:
    harness.apply()
    is_over = threading.Event()

    def change() -> None:
        while not is_over.wait(0.05):
            with harness.cluster._lock:
                found = harness.cluster.objects["deployments", "web"]
                harness.cluster._changed("MODIFIED", "deployments", found)

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        for revision in range(2, 8):
            harness.engine.apply(harness.spec(revision=revision))
        is_over.set()
        changing.result()
    assert harness.engine.service("web").revision == 7
    harness.close()


@pytest.mark.process
def test_a_failed_apply_leaves_the_service_that_another_one_has_finished(
    harness: FakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = harness.engine._create  # type: ignore[attr-defined]

    def lose(manifests: list[Manifest], spec: ServiceSpec) -> None:
        monkeypatch.setattr(harness.engine, "_put", fail)
        create(manifests, spec)

    def fail(*_: object) -> None:
        monkeypatch.undo()
        harness.engine.apply(harness.spec())  # as another process
        raise EngineError("no answer")

    monkeypatch.setattr(harness.engine, "_create", lose)
    with pytest.raises(EngineError, match="no answer"):
        harness.engine.apply(harness.spec())
    harness.wait_until(lambda status: status.is_settled)
    harness.close()


def test_objects_of_others_are_left_alone(harness: FakeHarness) -> None:
    objects = harness.cluster.objects
    foreign = {"kind": "Deployment", "metadata": {"name": "web", "resourceVersion": "1"}}
    objects["deployments", "web"] = {**foreign, "spec": {"paused": True}}
    for change in (
        lambda: harness.engine.apply(harness.spec()),
        lambda: harness.engine.scale("web", 2),
        lambda: harness.engine.delete("web"),
    ):
        with pytest.raises(EngineError, match="'web', which is not a service of timonel"):
            change()
    assert harness.engine.services() == []
    del objects["deployments", "web"]
    objects["serviceaccounts", "web"] = {"kind": "ServiceAccount", "metadata": {"name": "web"}}
    with pytest.raises(EngineError, match="a ServiceAccount 'web', which the service needs"):
        harness.engine.apply(harness.spec(uses_engine=True))
    eventually(lambda: harness.leftovers() == ["('serviceaccounts', 'web')"])


@pytest.mark.process
def test_replicas_that_manage_services(harness: FakeHarness) -> None:
    harness.apply(uses_engine=True)
    kinds = {kind for kind, name in harness.cluster.objects if name == "web"}
    assert kinds >= {"serviceaccounts", "roles", "rolebindings"}
    # Another revision may come from another release, with other rights.
    harness.cluster.objects["roles", "web"]["rules"] = []
    harness.apply(uses_engine=True, revision=2)
    assert harness.cluster.objects["roles", "web"]["rules"] != []
    harness.close()


@pytest.mark.process
def test_frequent_reads_send_no_requests(harness: FakeHarness) -> None:
    harness.apply()
    before = harness.cluster.requests
    for _ in range(50):
        harness.engine.services()
        harness.engine.service("web")
    assert harness.cluster.requests == before
    harness.close()


@pytest.mark.process
def test_a_forgotten_version_and_a_server_that_was_away(harness: FakeHarness) -> None:
    harness.apply()
    refusals = harness.cluster.refusals
    refusals["pods"] = refusals["deployments"] = (503, "starting")
    harness.cluster.end_watches()
    assert harness.engine.service("web").is_settled
    harness.cluster.forgotten = 10**9
    harness.cluster.end_watches()
    refusals.clear()
    harness.engine.scale("web", 2)
    harness.cluster.forgotten = 0
    harness.wait_until(lambda status: status.is_settled)
    harness.close()


def test_a_folder_is_no_workspace_of_clusters(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="services on Kubernetes need a workspace in a bucket"):
        KubernetesServiceEngine.of(find_workspace(str(tmp_path)))


@pytest.mark.process
def test_a_deleted_service_does_not_wait_for_a_lost_node(harness: FakeHarness) -> None:
    harness.apply()
    (replica,) = harness.engine.service("web").replicas
    harness.cluster.lost.add(replica.name)
    harness.engine.delete("web")
    eventually(lambda: harness.engine.service("web").replicas[0].state == "stopping")
    with harness.cluster._lock:
        pod = harness.cluster.objects["pods", replica.name]
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        harness.cluster._changed("MODIFIED", "pods", pod)
    eventually(lambda: harness.engine.services() == [])
    assert ("pods", replica.name) not in harness.cluster.objects


@pytest.mark.process
def test_a_lost_replica_of_a_service_that_stays_is_left_to_the_cluster(
    harness: FakeHarness,
) -> None:
    harness.apply()
    (replica,) = harness.engine.service("web").replicas
    harness.cluster.lost.add(replica.name)
    with harness.cluster._lock:
        pod = harness.cluster.objects["pods", replica.name]
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        harness.cluster._changed("MODIFIED", "pods", pod)
    eventually(lambda: "lost" in {each.state for each in harness.engine.service("web").replicas})
    assert ("pods", replica.name) in harness.cluster.objects
    with harness.cluster._lock:
        harness.cluster._delete("pods", replica.name, 0)
    harness.close()


RULES = AutoscalerSpec(
    least=1,
    most=5,
    metrics=({"type": "Pods", "pods": {"metric": {"name": "queued"}}},),
    behavior={"scaleDown": {"selectPolicy": "Disabled"}},
)


@pytest.mark.process
def test_the_cluster_scales_a_service_as_long_as_it_is_asked_to(harness: FakeHarness) -> None:
    harness.apply()
    for rules in (RULES, RULES, RULES.model_copy(update={"most": 7})):
        harness.engine.autoscale("web", rules)
        made = harness.cluster.objects["horizontalpodautoscalers", "web"]
        assert made["spec"] == autoscaler("web", rules)["spec"]
        assert made["metadata"]["ownerReferences"][0]["name"] == "web"
    made["status"] = {
        "conditions": [
            {"type": "AbleToScale", "status": "True"},
            {"type": "ScalingActive", "status": "False", "message": "no metrics returned"},
        ]
    }
    with pytest.raises(EngineError, match="cannot scale web: no metrics returned"):
        harness.engine.autoscale("web", rules)
    for _ in range(2):
        harness.engine.autoscale("web", None)
        assert ("horizontalpodautoscalers", "web") not in harness.cluster.objects
    harness.close()


@pytest.mark.process
def test_an_autoscaler_of_somebody_else_is_kept(harness: FakeHarness) -> None:
    harness.apply()
    path = "/apis/autoscaling/v2/namespaces/team/horizontalpodautoscalers"
    harness.cluster.answer("POST", path, autoscaler("web", RULES))
    with pytest.raises(
        EngineError, match="has a HorizontalPodAutoscaler 'web', which the service needs"
    ):
        harness.engine.autoscale("web", RULES)
    harness.engine.autoscale("web", None)
    assert harness.cluster.objects.pop(("horizontalpodautoscalers", "web"))
    harness.close()
