"""Which engine runs a workspace's endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.control.test_controller import ClusterEngine
from timonel.endpoints import engine as engines
from timonel.endpoints.engine import check_engine, claim, engine_of
from timonel.engines import ServiceEngine, service_engine_type
from timonel.errors import EngineError, SpecError
from timonel.storage import Workspace, find_workspace

TEAM = "s3://bucket/team"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The installed engines are the local one, and one whose documents are in a folder."""

    class Cluster(ClusterEngine):
        name = "cluster"

        @classmethod
        def of(cls, workspace: Workspace) -> Any:
            return cls(tmp_path / "documents")

    def type_of(name: str) -> type[ServiceEngine]:
        return Cluster if name == "cluster" else service_engine_type(name)

    monkeypatch.setattr(engines, "service_engine_names", lambda: ["cluster", "local"])
    monkeypatch.setattr(engines, "service_engine_type", type_of)
    monkeypatch.setattr(
        engines, "get_service_engine", lambda name, workspace: type_of(name).of(workspace)
    )
    engine_of.cache_clear()
    yield
    engine_of.cache_clear()


@pytest.fixture
def local(tmp_path: Path) -> Workspace:
    return find_workspace(tmp_path / ".timonel")


@pytest.fixture
def remote(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "copy", TEAM)


@pytest.mark.usefixtures("cluster")
def test_folders_are_of_this_machine_and_buckets_of_a_cluster(
    local: Workspace, remote: Workspace
) -> None:
    assert engine_of(local).name == "local"
    assert engine_of(remote).name == "cluster"
    assert check_engine(local, None).name == "local"
    assert check_engine(remote, "cluster").name == "cluster"


@pytest.mark.usefixtures("cluster")
def test_an_engine_that_cannot_use_the_workspace_is_refused(
    local: Workspace, remote: Workspace
) -> None:
    with pytest.raises(SpecError, match="cluster cannot read the workspace"):
        check_engine(local, "cluster")
    with pytest.raises(SpecError, match="need a workspace in a folder") as refused:
        check_engine(remote, None)
    assert refused.value.hint == "give --workspace FOLDER or --on cluster"
    with pytest.raises(SpecError, match="no such service engine: 'nosuch'"):
        check_engine(local, "nosuch")


@pytest.mark.usefixtures("cluster")
def test_a_cluster_has_the_endpoints_of_one_workspace(remote: Workspace) -> None:
    claim(remote)
    claim(remote)
    other = Workspace(remote.root, "s3://bucket/other")
    with pytest.raises(EngineError, match=f"another workspace here: {TEAM}"):
        engine_of(other)


def test_a_bucket_needs_an_engine_for_clusters(
    remote: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_of.cache_clear()
    monkeypatch.setattr(engines, "service_engine_names", lambda: ["local"])
    with pytest.raises(SpecError, match="found none"):
        engine_of(remote)
