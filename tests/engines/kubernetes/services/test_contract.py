"""The contract of service engines, kept on a fake cluster whose pods are processes."""

from __future__ import annotations

import pytest

from tests.contracts.services import ServiceEngineContract
from tests.engines.kubernetes.fake_services import ServiceCluster
from tests.engines.kubernetes.services.harness import FakeHarness
from timonel.engines.kubernetes.services import KubernetesServiceEngine

pytestmark = [pytest.mark.process, pytest.mark.enable_socket]


class TestKubernetes(ServiceEngineContract):
    @pytest.fixture
    def harness(self, engine: KubernetesServiceEngine, services: ServiceCluster) -> FakeHarness:
        return FakeHarness(engine, services)
