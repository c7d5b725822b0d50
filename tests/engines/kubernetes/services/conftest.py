"""What tests of services on Kubernetes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.kubernetes.fake_services import ServiceCluster
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.services import KubernetesServiceEngine
from timonel.engines.kubernetes.settings import ClusterSettings


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceCluster]:
    """A fake cluster with Deployments, which is the current one of kubectl."""
    pytest.importorskip("kubernetes")
    cluster = ServiceCluster(tmp_path, {})
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    yield cluster
    cluster.close()


@pytest.fixture
def engine(services: ServiceCluster) -> Iterator[KubernetesServiceEngine]:
    settings = ClusterSettings(image="registry.example/timonel:1")
    engine = KubernetesServiceEngine(Api.connect(settings), settings)
    yield engine
    engine.close()
