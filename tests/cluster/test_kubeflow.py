"""Manifests of Kubeflow on a cluster: TFJobs run by its training operator as well.

The table of failures in docs/tutorials/kubeflow.md says what these tests show.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.cluster.conftest import KUBELAB, Cluster, job_requirements
from tests.cluster.test_jobs import ClusterHarness
from timonel.containers import ImageSpec, build_image
from timonel.engines.kubernetes import KubernetesEngine
from timonel.errors import TimonelError
from timonel.storage import Workspace, find_workspace
from timonel.training import train
from timonel.training.handles import Run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    # The registry, the nodes and the bucket are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
_LIMIT_S = 240.0
_SCRIPT = """
import json, os, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
print("I am", name, flush=True)
how, _ = sys.argv[1:]
if task["type"] == "ps":
    time.sleep(3600)
if name == "chief-0":
    time.sleep(20)  # its end is the job's
if name == "worker-1" and how.isdecimal():
    sys.exit(int(how))
if name == "worker-1" and how == "raises":
    raise ValueError("the user's mistake")
if how == "waits":
    time.sleep(40)
"""

_MPI_SCRIPT = """
import keras, numpy as np
from timonel.training import context
x = np.arange(64, dtype="float32").reshape(64, 1) / 64
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, 2 * x, batch_size=8, epochs=1)
steps, replicas = model.optimizer.iterations.numpy(), context().strategy.num_replicas_in_sync
print(f"{steps} steps with {replicas} replicas", flush=True)
"""


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> None:
    """Kubeflow's training operator, which kubelab builds."""
    if cluster.is_own:
        subprocess.run([str(KUBELAB), "training-operator"], check=True)
    elif "tfjobs.kubeflow.org" not in cluster.run("get", "crd", "-o", "name"):
        pytest.skip("this cluster has no training operator")


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of jobs, with the scripts."""
    code = tmp_path_factory.mktemp("kubeflow")
    (code / "outcome.py").write_text(_SCRIPT)
    (code / "mnist.py").write_text(_MPI_SCRIPT)
    needed = tmp_path_factory.mktemp("needed") / "requirements.txt"
    needed.write_text("\n".join([*job_requirements(), ""]))
    spec = ImageSpec(code, base="self", requirements=needed)
    return build_image(spec, f"{cluster.registry}/timonel/outcome:v1", plain_http=True).name


@pytest.fixture
def workspace(cluster: Cluster, job_bucket: str) -> Iterator[Workspace]:
    found = find_workspace(job_bucket)
    yield found
    for status in KubernetesEngine.of(found).jobs():
        cluster.run("delete", "job", status.job_id, "--wait=false")


def manifest(image: str, how: str, policy: str, marker: str) -> dict[str, Any]:
    """Return a TFJob whose second worker ends as ``how`` says."""
    container = {
        "name": "tensorflow",
        "image": image,
        "command": ["python3", "/app/outcome.py", how, marker],
        "resources": {"requests": {"cpu": "100m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    role = {"restartPolicy": policy, "template": {"spec": {"containers": [container]}}}
    specs = {"Chief": role, "PS": role, "Worker": {**role, "replicas": 2}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": f"outcome-{uuid.uuid4().hex[:6]}"},
        "spec": {"runPolicy": {"backoffLimit": 2}, "tfReplicaSpecs": specs},
    }


Disturbance = Literal["", "kill", "delete"]
"""What is done to the second worker: its process killed, or its pod deleted as by a pre-emption."""


def kill_on_its_node(cluster: Cluster, marker: str, labels: str) -> None:
    """Kill the second worker's program with SIGKILL: its exit code is 137.

    Its pod cannot: signals from within do not reach the first process.
    """
    node = cluster.run(
        *("get", "pods", "-l", labels, "-o", "jsonpath={.items[0].spec.nodeName}")
    ).removeprefix("node")
    script = f"""
for pid in $(pgrep -f 'outcome.py waits {marker}'); do
  tr '\\0' '\\n' < /proc/$pid/environ | grep -q '"type":"worker","index":1' && kill -9 $pid && exit
done
exit 3
"""
    subprocess.run([str(KUBELAB), "exec", node, "sh", "-c", script], check=True)


def delete(cluster: Cluster, labels: str) -> None:
    cluster.run("delete", "pod", "-l", labels, "--wait=false")


def by_operator(cluster: Cluster, job: dict[str, Any], marker: str, disturb: Disturbance) -> str:
    """Run a TFJob, and return the state in which it ends, or ``Restarting``."""
    name = job["metadata"]["name"]
    labels = (
        f"training.kubeflow.org/job-name={name},training.kubeflow.org/replica-type=worker,"
        "training.kubeflow.org/replica-index=1"
    )
    cluster.apply(job)
    try:
        if disturb:
            eventually_running(cluster, labels)
            if disturb == "kill":
                kill_on_its_node(cluster, marker, labels)
            else:
                delete(cluster, labels)
        deadline = time.monotonic() + _LIMIT_S
        state = ""
        while time.monotonic() < deadline:
            found = json.loads(cluster.run("get", "tfjob", name, "-o", "json"))
            conditions = found.get("status", {}).get("conditions") or []
            state = next((c["type"] for c in reversed(conditions) if c["status"] == "True"), "")
            if state in {"Succeeded", "Failed"}:
                return state
            time.sleep(1)
        return state
    finally:
        cluster.run("delete", "tfjob", name, "--wait=false")


def by_timonel(
    cluster: Cluster, workspace: Workspace, path: Path, disturb: Disturbance
) -> tuple[str, int]:
    """Run a TFJob as ``timonel train -f``, and return its final state and its restarts."""
    run: Run = train(None, manifest=path, workspace=workspace, on="kubernetes", detach=True)
    if disturb:
        while not any("I am worker" in line.text for line in run.job.logs(task_id="worker-1")):
            time.sleep(0.5)
            assert not run.job.status().state.is_final, run.job.status()
        engine = KubernetesEngine.of(workspace)
        pods = ClusterHarness(engine, "", cluster=cluster, workspace=workspace)
        if disturb == "kill":
            pods.kill_task(run.id, "worker-1")
        else:
            cluster.run("delete", *pods.pods(run.id, "worker")[1:], "--wait=false")
    try:
        status = run.job.wait()
    except TimonelError as error:
        print(f"timonel: {error}")
        status = run.job.status()
    return str(status.state), status.restarts


def eventually_running(cluster: Cluster, labels: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while "Running" not in cluster.run(
        "get", "pods", "-l", labels, "-o", "jsonpath={.items[*].status.phase}"
    ):
        assert time.monotonic() < deadline, labels
        time.sleep(0.5)
    time.sleep(3)  # the program itself


@dataclass(frozen=True)
class Case:
    """What happens to the second worker, and how both then end.

    Attributes:
        how: What its program does.
        policy: The restart policy of all replicas.
        disturb: What is done to it from outside.
        operator: The state in which the operator's job ends.
        ours: The state in which timonel's job ends, and its restarts.
    """

    how: str
    policy: str
    disturb: Disturbance
    operator: str
    ours: tuple[str, int]


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    "case",
    [
        Case("ends", "ExitCode", "", "Succeeded", ("succeeded", 0)),
        Case("raises", "ExitCode", "", "Failed", ("failed", 0)),
        Case("raises", "Never", "", "Failed", ("failed", 0)),
        # The operator restarts what fails again.
        Case("raises", "OnFailure", "", "Failed", ("failed", 0)),
        Case("waits", "Never", "kill", "Failed", ("failed", 0)),
        Case("waits", "ExitCode", "kill", "Succeeded", ("succeeded", 1)),
        Case("waits", "OnFailure", "kill", "Succeeded", ("succeeded", 1)),
        # It takes a deleted pod for a failure.
        Case("waits", "ExitCode", "delete", "Failed", ("succeeded", 1)),
        Case("waits", "OnFailure", "delete", "Failed", ("succeeded", 1)),
    ],
    ids=lambda case: f"{case.how}-{case.policy}-{case.disturb or 'undisturbed'}",
)
def test_both_end_in_the_same_state(
    cluster: Cluster, workspace: Workspace, image: str, tmp_path: Path, case: Case
) -> None:
    if case.disturb == "kill" and not cluster.is_own:
        pytest.skip("only processes on kubelab's nodes are killed")
    begin = time.monotonic()
    marker = uuid.uuid4().hex
    job = manifest(image, case.how, case.policy, marker)
    found = by_operator(cluster, job, marker, case.disturb)
    middle = time.monotonic()
    marker = uuid.uuid4().hex
    job = manifest(image, case.how, case.policy, marker)
    path = tmp_path / "tfjob.yaml"
    path.write_text(json.dumps(job))
    ours = by_timonel(cluster, workspace, path, case.disturb)
    print(
        f"{case}: operator {found} after {middle - begin:.0f} s, timonel {ours} after "
        f"{time.monotonic() - middle:.0f} s"
    )
    assert (found, ours) == (case.operator, case.ours)


def test_two_processes_of_an_mpijob_train_one_model(
    cluster: Cluster, workspace: Workspace, image: str, tmp_path: Path
) -> None:
    command = "mpirun -np 2 --allow-run-as-root -bind-to none -x LEVEL=3 python3 /app/mnist.py"
    launcher = {"name": "mpi", "image": image, "command": command.split()}
    worker = {"name": "mpi", "image": image, "resources": {"requests": {"cpu": "100m"}}}
    specs = {
        "Launcher": {"template": {"spec": {"containers": [launcher]}}},
        "Worker": {"replicas": 2, "template": {"spec": {"containers": [worker]}}},
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MPIJob",
        "metadata": {"name": f"mpi-{uuid.uuid4().hex[:6]}"},
        "spec": {"slotsPerWorker": 1, "mpiReplicaSpecs": specs},
    }
    path = tmp_path / "mpijob.yaml"
    path.write_text(json.dumps(job))
    begin = time.monotonic()
    run = train(None, manifest=path, workspace=workspace, on="kubernetes")
    print(f"timonel: {run.job.status().state} after {time.monotonic() - begin:.0f} s")
    for task in ("worker-0", "worker-1"):
        assert any("4 steps with 2 replicas" in line.text for line in run.job.logs(task_id=task)), (
            task
        )
