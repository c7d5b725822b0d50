"""The checks of ``timonel cluster check`` on a fake cluster, with a job that runs there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.containers.registry_server import registry_server
from tests.contracts.engines import eventually
from tests.engines.kubernetes.fake_cluster import FakeCluster
from tests.engines.kubernetes.memory_api import MemoryApi
from timonel.checks import Verdict
from timonel.engines import JobSpec
from timonel.engines.kubernetes import KubernetesEngine, checks
from timonel.engines.kubernetes.api import Api
from timonel.storage import Workspace, find_workspace
from timonel.storage.workspace import CLAIM_VARIABLE

pytestmark = pytest.mark.enable_socket


@pytest.mark.process
def test_a_cluster_and_a_bucket_that_work(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry_server() as registry:
        registry.add_image("timonel", "1")
        monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", f"{registry.host}/timonel:1")
        found = list(checks.examine(bucket.uri, os.environ))
    assert [check.name for check in found if check.verdict is not Verdict.OK] == []
    assert cluster.objects == {}
    _, names = checks.ObjectStore(bucket.uri).children()
    assert names == ["FORMAT"]
    run = checks.run_job(bucket, 60.0)
    assert run.verdict is Verdict.OK, run
    assert "printed 'timonel " in run.found
    assert KubernetesEngine.of(bucket).jobs() == []
    assert checks.ObjectStore(bucket.uri).find("jobs") == {}


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a claim, of a user other than root."""
    team = tmp_path / "team"
    team.mkdir()
    monkeypatch.setenv(CLAIM_VARIABLE, f"team:{team}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return team


def make_claim(api: Api, modes: list[str], phase: str) -> None:
    """Create the claim."""
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "team"}}
    api.create({**head, "spec": {"accessModes": modes}})
    api.patch("PersistentVolumeClaim", "team", {"status": {"phase": phase}})


@pytest.mark.parametrize(
    ("modes", "verdict"), [(["ReadWriteMany"], Verdict.OK), (["ReadWriteOnce"], Verdict.WARN)]
)
def test_a_claim(
    modes: list[str], verdict: Verdict, cluster: FakeCluster, api: Api, team: Path
) -> None:
    make_claim(api, modes, "Bound")
    checked = {check.name: check for check in checks.examine(str(team / "ws"), os.environ)}
    assert checked["PersistentVolumeClaim team"].verdict is verdict
    assert checked["folder on this machine"].found == f"shared://{team} can be written and read"
    assert list(team.iterdir()) == []
    assert "bucket" not in checked


def test_a_missing_claim(cluster: FakeCluster, team: Path) -> None:
    checked = {check.name: check for check in checks.examine(str(team / "ws"), os.environ)}
    claim = checked["PersistentVolumeClaim team"]
    assert claim.verdict is Verdict.FAIL
    assert claim.found == "no PersistentVolumeClaim 'team' in namespace 'team'"
    assert checked["folder on this machine"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("phase", "event", "verdict", "found"),
    [
        ("Pending", None, Verdict.FAIL, "has no volume: it is Pending"),
        ("Lost", None, Verdict.FAIL, "has no volume: it is Lost"),
        (
            "Pending",
            ("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found'),
            Verdict.FAIL,
            'has no volume: it is Pending: storageclass.storage.k8s.io "fast" not found',
        ),
        (
            "Pending",
            ("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
            Verdict.NOTE,
            "gets a volume when the first pod uses it (WaitForFirstConsumer)",
        ),
    ],
)
def test_an_unbound_claim(
    phase: str,
    event: tuple[str, str] | None,
    verdict: Verdict,
    found: str,
    cluster: FakeCluster,
    api: Api,
    team: Path,
) -> None:
    make_claim(api, ["ReadWriteMany"], phase)
    if event is not None:
        head = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "team.1"}}
        api.create({**head, "reason": event[0], "message": event[1]})
    checked = {check.name: check for check in checks.examine(str(team / "ws"), os.environ)}
    claim = checked["PersistentVolumeClaim team"]
    assert (claim.verdict, claim.found) == (verdict, found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_pods_of_root_cannot_write_the_folder(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "team").mkdir()
    monkeypatch.setenv(CLAIM_VARIABLE, f"team:{tmp_path}/team")
    (*_, check) = checks.examine(f"{tmp_path}/team/ws", os.environ)
    assert (check.name, check.verdict) == ("folder on this machine", Verdict.FAIL)
    assert check.found.startswith("pods run as user 65532, which cannot write what root makes in")
    assert list((tmp_path / "team").iterdir()) == []


def test_a_workspace_of_one_machine_on_the_claim_fails(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = find_workspace(tmp_path / "team/ws")
    monkeypatch.setenv(CLAIM_VARIABLE, f"team:{tmp_path}/team")
    (*_, check) = checks.examine(made.uri, os.environ)
    assert (check.name, check.verdict) == ("folder on this machine", Verdict.FAIL)
    assert "it was created for one machine" in check.found
    run = checks.run_job(made, 0.0)
    assert "it was created for one machine" in run.found


def test_a_missing_queue(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_QUEUE", "vision")
    checked = {check.name: check for check in checks.examine("s3://bucket/ws", os.environ)}
    assert checked["LocalQueue vision"].verdict is Verdict.FAIL


def test_a_queue_without_kueue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_QUEUE", "vision")
    api = MemoryApi()
    api.unknown.add("LocalQueue")
    monkeypatch.setattr(Api, "connect", lambda _: api)
    checked = {check.name: check for check in checks.examine("s3://bucket/ws", os.environ)}
    assert checked["LocalQueue vision"].verdict is Verdict.FAIL
    assert "Kueue is not installed" in checked["LocalQueue vision"].found


def test_a_claim_that_this_machine_does_not_mount(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLAIM_VARIABLE, f"team:{tmp_path}/team")
    (*_, check) = checks.examine(f"{tmp_path}/team/ws", os.environ)
    assert check.verdict is Verdict.FAIL
    assert check.found == f"this machine has no folder for the claim team:{tmp_path}/team"


@pytest.mark.process
def test_a_job_that_does_not_end(bucket: Workspace, cluster: FakeCluster) -> None:
    run = checks.run_job(bucket, 0.0)
    assert run.verdict is Verdict.FAIL
    assert "is pending" in run.found
    assert "see 'kubectl " in (run.hint or "")


def test_a_job_that_no_node_can_run_leaves_nothing(
    bucket: Workspace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = KubernetesEngine.submit

    def submit_and_wait(engine: KubernetesEngine, spec: JobSpec) -> None:
        submit(engine, spec)
        eventually(lambda: engine.status(spec.job_id).message is not None)

    monkeypatch.setattr(KubernetesEngine, "submit", submit_and_wait)
    message = "0/3 nodes are available: 3 Insufficient memory."
    unscheduled = {"type": "PodScheduled", "status": "False", "message": message}
    cluster.stuck = {"phase": "Pending", "conditions": [unscheduled]}
    run = checks.run_job(bucket, 0.0)
    assert run.verdict is Verdict.FAIL
    assert run.found.endswith(
        "is pending: the coordinator cannot be scheduled: of 3 nodes, 3 lack free memory"
    )
    assert run.hint == "see 'kubectl get events -n team'"
    assert cluster.objects == {}


def test_a_job_whose_coordinator_crashes_again_and_again_ends_the_check(
    bucket: Workspace, cluster: FakeCluster
) -> None:
    ended = {"exitCode": 1, "message": "Traceback ...\nModuleNotFoundError: No module named 'x'\n"}
    container = {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
        "restartCount": 2,
    }
    cluster.stuck = {"phase": "Running", "containerStatuses": [container]}
    run = checks.run_job(bucket, 3600.0)
    assert run.verdict is Verdict.FAIL
    assert "exits again and again with code 1: ModuleNotFoundError: No module named 'x'" in (
        run.found
    )
    assert "kubectl logs check-" in run.found
    assert "kubectl delete job/check-" in (run.hint or "")
    assert any(plural == "pods" for plural, _ in cluster.objects)  # for 'kubectl logs'
