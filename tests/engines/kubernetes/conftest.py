"""What tests of the Kubernetes engine share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buckets import open_bucket
from tests.engines.kubernetes.fake_cluster import FakeCluster
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.storage import Workspace, find_workspace

_LONG = ("FailingContract", "OptionalContract")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of the contract to the soak: each of its jobs starts three processes."""
    for item in items:
        is_here = item.path.is_relative_to(Path(__file__).parent)
        if is_here and item.obj.__qualname__.startswith(_LONG):  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.soak)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A fake cluster, which is the current one of kubectl."""
    pytest.importorskip("kubernetes")
    (tmp_path / "tmp").mkdir()
    # What clients of buckets need, if a bucket was opened before.
    kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    cluster = FakeCluster(tmp_path, kept)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", "registry.example/timonel:1")
    yield cluster
    cluster.close()


@pytest.fixture
def api(cluster: FakeCluster) -> Api:
    """A client of the fake cluster, which does not wait before it repeats a request."""
    found = Api.connect(ClusterSettings())
    return Api(found.namespace, found._client, sleep=lambda _: None)


@pytest.fixture
def bucket(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workspace]:
    """A workspace in a bucket; to be asked for before a cluster."""
    opened = open_bucket("s3", request, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield find_workspace(next(opened))
    next(opened, None)
