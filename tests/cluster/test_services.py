"""The contract of service engines, kept by the Kubernetes engine on a real cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.conftest import Cluster
from tests.contracts.engines import harness as waiting
from tests.contracts.services import REPLICA_MODULE, ServiceEngineContract, ServiceHarness
from timonel.engines import Sidecar
from timonel.engines.kubernetes import KubernetesServiceEngine
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.settings import ClusterSettings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    # The registry and the nodes are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
_DEADLINE_S = 120.0
_MANAGER = """
import os, pathlib, runpy, sys
from timonel.engines import ServiceSpec
from timonel.engines.kubernetes import KubernetesServiceEngine
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.settings import ClusterSettings
settings = ClusterSettings.of(os.environ)
engine = KubernetesServiceEngine(Api.connect(settings), settings, os.environ["TIMONEL_POD_NAME"])
before = [status.name for status in engine.services()]
engine.apply(ServiceSpec(name="made", module="tests.contracts.service_replica"))
engine.scale("made", 2)
after = [status.name for status in engine.services() if status.name not in before]
pathlib.Path(sys.argv[1], "services.txt").write_text("\\n".join(before + after))
sys.argv = ["service_replica"]
runpy.run_module("tests.contracts.service_replica", run_name="__main__")
"""
_KINDS = "deployments,replicasets,pods,poddisruptionbudgets,serviceaccounts,roles,rolebindings"


class ClusterHarness(ServiceHarness):
    """The engine with a real cluster."""

    def __init__(self, engine: KubernetesServiceEngine, cluster: Cluster) -> None:
        super().__init__(engine)
        self.cluster = cluster

    def kill_replica(self, service: str, replica: str) -> None:
        assert replica.startswith(service)
        if not self.cluster.is_own:
            pytest.skip("the nodes are no processes of this machine")
        # A container cannot kill its first process from inside.
        os.kill(_first_process(replica), signal.SIGKILL)

    def leftovers(self) -> list[str]:
        labels = "app.kubernetes.io/managed-by=timonel"
        return self.cluster.run("get", _KINDS, "-l", labels, "-o", "name").split()


def _first_process(pod: str) -> int:
    """Return the process of a pod's replica on this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            env = (folder / "environ").read_bytes().split(b"\0")
            status = (folder / "status").read_text()
        except OSError:
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        is_replica = REPLICA_MODULE.encode() in command and numbers[-1] == "1"
        if is_replica and f"TIMONEL_POD_NAME={pod}".encode() in env:
            return int(folder.name)
    raise AssertionError(f"no process of {pod}")


@pytest.fixture
def engine(
    cluster: Cluster, job_image: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesServiceEngine]:
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    settings = ClusterSettings(namespace=cluster.namespace, image=job_image)
    engine = KubernetesServiceEngine(Api.connect(settings), settings)
    yield engine
    engine.close()


@pytest.fixture
def harness(
    engine: KubernetesServiceEngine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> ClusterHarness:
    monkeypatch.setattr(waiting, "DEADLINE_S", _DEADLINE_S)
    return ClusterHarness(engine, cluster)


class TestKubernetes(ServiceEngineContract):
    """The contract."""


def test_replicas_manage_services_and_have_a_sidecar(harness: ClusterHarness) -> None:
    sidecar = Sidecar(
        name="files",
        command=("python3", "-m", "http.server", "8500", "--directory", "$(SHARED)"),
        ports={"files": 8500},
        ready_path="/",
    )
    status = harness.apply(
        module=None,
        command=("python3", "-c", _MANAGER),
        args=("$(SHARED)",),
        sidecar=sidecar,
        uses_engine=True,
    )
    (replica,) = status.replicas
    host, _, port = replica.addresses["files"].rpartition(":")
    found = httpx.get(f"http://{host}:{port}/services.txt", timeout=10).text.splitlines()
    assert found == ["web", "made"]
    harness.wait_until(lambda status: status.is_settled, "made")
    harness.close()
