"""The contract of service engines, kept by the Kubernetes engine on a real cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from timonel.engines.kubernetes import KubernetesServiceEngine
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.testing.engines import harness as waiting
from timonel.testing.services import REPLICA_MODULE, ServiceEngineContract, ServiceHarness

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    # The registry and the nodes are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
_DEADLINE_S = 120.0
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


class TestKubernetes(ServiceEngineContract):
    @pytest.fixture
    def harness(
        self,
        engine: KubernetesServiceEngine,
        cluster: Cluster,
        monkeypatch: pytest.MonkeyPatch,
    ) -> ClusterHarness:
        monkeypatch.setattr(waiting, "DEADLINE_S", _DEADLINE_S)
        return ClusterHarness(engine, cluster)
