"""One manifest, run by Kubeflow's training operator and by timonel on the same cluster.

The table of failures in docs/tutorials/kubeflow.md says what these tests show.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import KUBELAB, Cluster, job_requirements
from timonel.containers import ImageSpec, build_image
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
time.sleep(2)
if name == "worker-1" and how.isdecimal():
    sys.exit(int(how))
if name == "worker-1" and how == "raises":
    raise ValueError("the user's mistake")
if how == "waits":
    time.sleep(40)
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
    """The image of jobs, with the script."""
    code = tmp_path_factory.mktemp("kubeflow")
    (code / "outcome.py").write_text(_SCRIPT)
    needed = tmp_path_factory.mktemp("needed") / "requirements.txt"
    needed.write_text("\n".join([*job_requirements(), ""]))
    spec = ImageSpec(code, base="self", requirements=needed)
    return build_image(spec, f"{cluster.registry}/timonel/outcome:v1", plain_http=True).name


@pytest.fixture
def workspace(job_bucket: str) -> Workspace:
    return find_workspace(job_bucket)


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


Disturb = Callable[[Cluster, str, str], None]


def nothing(cluster: Cluster, marker: str, labels: str) -> None:
    """Disturb nothing."""


def kill_worker(cluster: Cluster, marker: str, labels: str) -> None:
    """Kill the second worker's process with SIGKILL, from its node: its exit code is 137."""
    node = cluster.run(
        *("get", "pods", "-l", labels, "-o", "jsonpath={.items[0].spec.nodeName}")
    ).removeprefix("node")
    found = subprocess.run(
        [str(KUBELAB), "exec", node, "pgrep", "-f", f"outcome.py waits {marker}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    for pid in found:
        environment = subprocess.run(
            [str(KUBELAB), "exec", node, "cat", f"/proc/{pid}/environ"],
            check=True,
            capture_output=True,
        ).stdout
        for variable in environment.split(b"\0"):
            if variable.startswith(b"TF_CONFIG="):
                task = json.loads(variable.partition(b"=")[2])["task"]
                if task == {"type": "worker", "index": 1}:
                    subprocess.run([str(KUBELAB), "exec", node, "kill", "-9", pid], check=True)
                    return
    pytest.fail(f"no second worker among the processes {found}")


def delete_worker(cluster: Cluster, marker: str, labels: str) -> None:
    """Delete the second worker's pod, as a pre-emption does."""
    cluster.run("delete", "pod", "-l", labels, "--wait=false")


def by_operator(cluster: Cluster, job: dict[str, Any], marker: str, disturb: Disturb) -> str:
    """Run a TFJob, and return the state in which it ends, or ``Restarting``."""
    name = job["metadata"]["name"]
    labels = (
        f"training.kubeflow.org/job-name={name},training.kubeflow.org/replica-type=worker,"
        "training.kubeflow.org/replica-index=1"
    )
    cluster.apply(job)
    try:
        if disturb is not nothing:
            eventually_running(cluster, labels)
            disturb(cluster, marker, labels)
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
    cluster: Cluster,
    workspace: Workspace,
    job: dict[str, Any],
    folder: Path,
    marker: str,
    disturb: Disturb,
) -> tuple[str, int]:
    """Run a TFJob as ``timonel train -f``, and return its final state and its restarts."""
    path = folder / "tfjob.yaml"
    path.write_text(json.dumps(job))
    run: Run = train(None, manifest=path, workspace=workspace, on="kubernetes", detach=True)
    if disturb is not nothing:
        labels = (
            f"timonel.dev/job={run.id},timonel.dev/role=worker,"
            "batch.kubernetes.io/job-completion-index=1"
        )
        eventually_running(cluster, labels)
        while not any("I am worker-1" in line.text for line in run.job.logs(task_id="worker-1")):
            time.sleep(0.5)
            assert not run.job.status().state.is_final, run.job.status()
        disturb(cluster, marker, labels)
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
    disturb: Disturb
    operator: str
    ours: tuple[str, int]


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    "case",
    [
        Case("ends", "ExitCode", nothing, "Succeeded", ("succeeded", 0)),
        Case("raises", "ExitCode", nothing, "Failed", ("failed", 0)),
        Case("raises", "Never", nothing, "Failed", ("failed", 0)),
        # The operator restarts what fails again.
        Case("raises", "OnFailure", nothing, "Failed", ("failed", 0)),
        Case("waits", "Never", kill_worker, "Failed", ("failed", 0)),
        Case("waits", "ExitCode", kill_worker, "Succeeded", ("succeeded", 1)),
        Case("waits", "OnFailure", kill_worker, "Succeeded", ("succeeded", 1)),
        Case("waits", "ExitCode", delete_worker, "Succeeded", ("succeeded", 1)),
    ],
    ids=lambda case: f"{case.how}-{case.policy}-{case.disturb.__name__}",
)
def test_both_end_in_the_same_state(
    cluster: Cluster, workspace: Workspace, image: str, tmp_path: Path, case: Case
) -> None:
    if case.disturb is kill_worker and not cluster.is_own:
        pytest.skip("only processes on kubelab's nodes are killed")
    begin = time.monotonic()
    marker = uuid.uuid4().hex
    job = manifest(image, case.how, case.policy, marker)
    found = by_operator(cluster, job, marker, case.disturb)
    middle = time.monotonic()
    marker = uuid.uuid4().hex
    job = manifest(image, case.how, case.policy, marker)
    ours = by_timonel(cluster, workspace, job, tmp_path, marker, case.disturb)
    print(
        f"{case}: operator {found} after {middle - begin:.0f} s, timonel {ours} after "
        f"{time.monotonic() - middle:.0f} s"
    )
    assert (found, ours) == (case.operator, case.ours)
