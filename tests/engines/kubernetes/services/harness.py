"""The harness of the contract suite for a fake cluster."""

from __future__ import annotations

import os
import signal

from tests.contracts.services import ServiceHarness
from tests.engines.kubernetes.fake_services import ServiceCluster
from timonel.engines.kubernetes.services import KubernetesServiceEngine


class FakeHarness(ServiceHarness):
    def __init__(self, engine: KubernetesServiceEngine, cluster: ServiceCluster) -> None:
        super().__init__(engine)
        self.cluster = cluster

    def kill_replica(self, service: str, replica: str) -> None:
        assert replica.startswith(service)
        pid = self.cluster.pods[replica].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> list[str]:
        labelled = [key for key, each in self.cluster.objects.items() if key[0] != "events"]
        return [*map(str, labelled), *self.cluster.pods]
