"""Jobs that wait in a queue of Kueue, which admits all of a job's tasks or none."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import KUBELAB, Cluster
from tests.cluster.test_jobs import ClusterHarness
from tests.contracts.engines import eventually, harness
from timonel.engines import JobState, Resources, RoleSpec
from timonel.engines.kubernetes import KubernetesEngine
from timonel.errors import SpecError
from timonel.storage import find_workspace

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    # The registry, the nodes and the bucket are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
_API = "kueue.x-k8s.io/v1beta2"
_WORKERS = (RoleSpec(name="worker", replicas=2, resources=Resources(cpus=0.1)),)


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[None]:
    """Kueue, which kubelab builds and which manages the pods of the tests' namespace only."""
    if not cluster.is_own:
        if "localqueues.kueue.x-k8s.io" not in cluster.run("get", "crd", "-o", "name"):
            pytest.skip("this cluster has no Kueue")
        yield
        return
    subprocess.run([str(KUBELAB), "kueue"], check=True)
    cluster.run("label", "namespace", cluster.namespace, "kubelab/kueue=true")
    yield
    subprocess.run([str(KUBELAB), "kueue", "remove"], check=True)


@dataclass
class Queue:
    """A queue with a quota of CPUs of its own."""

    cluster: Cluster
    name: str

    def set_quota(self, cpus: str, *, is_drained: bool = False) -> None:
        """Set the quota; a drained queue evicts what it has admitted."""
        resources = [{"name": "cpu", "nominalQuota": cpus}]
        group = {
            "coveredResources": ["cpu"],
            "flavors": [{"name": self.name, "resources": resources}],
        }
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [group],
            "stopPolicy": "HoldAndDrain" if is_drained else "None",
        }
        self._apply("ClusterQueue", spec)

    def create(self) -> None:
        self._apply("ResourceFlavor", {})
        self.set_quota("200m")
        self._apply("LocalQueue", {"clusterQueue": self.name}, namespace=self.cluster.namespace)

    def delete(self) -> None:
        for kind in ("localqueue", "clusterqueue", "resourceflavor"):
            self.cluster.run("delete", f"{kind}.kueue.x-k8s.io", self.name, "--wait=false")

    def workloads(self) -> list[dict[str, Any]]:
        shown = json.loads(self.cluster.run("get", "workloads.kueue.x-k8s.io", "-o", "json"))
        return [each for each in shown["items"] if each["spec"]["queueName"] == self.name]

    def _apply(self, kind: str, spec: dict[str, Any], **metadata: str) -> None:
        metadata = {"name": self.name, **metadata}
        self.cluster.apply({"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": spec})


@pytest.fixture
def queue(cluster: Cluster, kueue: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A queue with the quota of two workers."""
    del kueue
    found = Queue(cluster, f"queue-{uuid.uuid4().hex[:8]}")
    found.create()
    monkeypatch.setenv("TIMONEL_KUBERNETES_QUEUE", found.name)
    yield found
    found.delete()


@pytest.fixture
def jobs(
    cluster: Cluster,
    queue: Queue,
    job_image: str,
    job_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ClusterHarness]:
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", job_image)
    monkeypatch.setattr(harness, "DEADLINE_S", 120.0)
    source = tmp_path / "program"
    source.mkdir()
    (source / "source.txt").write_text("")
    workspace = find_workspace(job_bucket)
    found = ClusterHarness(
        KubernetesEngine.of(workspace), str(source), cluster=cluster, workspace=workspace
    )
    yield found
    found.close()
    # Neither pods nor a reserved quota are left.
    eventually(lambda: not queue.workloads(), explain=lambda: str(queue.workloads()))


def test_a_job_starts_as_a_whole_when_the_queue_has_room(
    jobs: ClusterHarness, queue: Queue
) -> None:
    queue.set_quota("120m")  # enough for the chief
    roles = (
        RoleSpec(name="chief", resources=Resources(cpus=0.12)),
        RoleSpec(name="worker", resources=Resources(cpus=0.08)),
    )
    job_id = jobs.submit("ready", "await:go", roles=roles)
    waiting = jobs.wait_until(job_id, lambda status: "waits in the queue" in (status.message or ""))
    assert waiting.message is not None
    assert f"waiting for 2 of 2 pods: chief-0 waits in the queue '{queue.name}'" in waiting.message
    assert f"kubectl describe workload {job_id}-" in waiting.message
    nodes = jobs.kubectl(
        *("get", "pods", "-l", f"timonel.dev/job={job_id},timonel.dev/role!=coordinator"),
        *("-o", "jsonpath={.items[*].spec.nodeName}"),
    )
    assert not nodes.split()
    queue.set_quota("200m")
    running = jobs.wait_for_state(job_id, JobState.RUNNING)
    assert running.restarts == 0
    jobs.write_file("go", job_id=job_id)
    assert jobs.wait(job_id).state is JobState.SUCCEEDED


def test_a_lost_pod_is_replaced_within_the_quota(jobs: ClusterHarness) -> None:
    job_id = jobs.submit("ready", "g1@wait", "await:go", roles=_WORKERS)
    jobs.wait_for_state(job_id, JobState.RUNNING)
    lost = next(pod for pod in jobs.pods(job_id, "worker") if "-worker-1-" in pod)
    jobs.kubectl("delete", lost, "--wait=false")
    jobs.wait_until(job_id, lambda now: now.generation == 2 and now.state is JobState.RUNNING)
    jobs.kill_task(job_id, "worker-0")
    jobs.wait_until(job_id, lambda now: now.generation == 3 and now.state is JobState.RUNNING)
    jobs.write_file("go", job_id=job_id)
    assert jobs.wait(job_id).state is JobState.SUCCEEDED


def test_an_evicted_job_waits_again_and_continues(jobs: ClusterHarness, queue: Queue) -> None:
    job_id = jobs.submit("ready", "g1@wait", "await:go", roles=_WORKERS)
    jobs.wait_for_state(job_id, JobState.RUNNING)
    queue.set_quota("200m", is_drained=True)
    jobs.wait_until(job_id, lambda status: "waits in the queue" in (status.message or ""))
    queue.set_quota("200m")
    jobs.wait_until(job_id, lambda now: now.generation >= 2 and now.state is JobState.RUNNING)
    jobs.write_file("go", job_id=job_id)
    assert jobs.wait(job_id).state is JobState.SUCCEEDED


def test_a_job_that_ends_without_a_pod_frees_its_quota(jobs: ClusterHarness, queue: Queue) -> None:
    job_id = jobs.submit("ready", "wait", roles=_WORKERS)
    jobs.wait_for_state(job_id, JobState.RUNNING)
    queue.set_quota("200m", is_drained=True)
    jobs.wait_until(job_id, lambda status: "waits in the queue" in (status.message or ""))
    jobs.engine.cancel(job_id)
    assert jobs.wait(job_id).state is JobState.STOPPED
    eventually(lambda: not queue.workloads(), explain=lambda: str(queue.workloads()))
    # The same name again, as another group.
    queue.set_quota("200m")
    KubernetesEngine.of(jobs.workspace).resume(job_id)  # type: ignore[arg-type]
    jobs.wait_for_state(job_id, JobState.RUNNING)


def test_deleting_a_job_that_waits_leaves_nothing(jobs: ClusterHarness, queue: Queue) -> None:
    queue.set_quota("100m")
    job_id = jobs.submit("ready", roles=_WORKERS)
    jobs.wait_until(job_id, lambda status: "waits in the queue" in (status.message or ""))
    jobs.kubectl("delete", "job", job_id, "--cascade=foreground")
    assert not jobs.pods(job_id)
    eventually(lambda: not queue.workloads(), explain=lambda: str(queue.workloads()))


def test_a_missing_queue_is_an_error(jobs: ClusterHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMONEL_KUBERNETES_QUEUE", "missing")
    assert jobs.workspace is not None
    engine = KubernetesEngine.of(jobs.workspace)
    with pytest.raises(SpecError, match="no queue 'missing' in namespace"):
        engine.submit(jobs.spec("wait", roles=_WORKERS))
    assert engine.jobs() == []
