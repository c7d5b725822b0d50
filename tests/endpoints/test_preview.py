"""Objects of a cluster that a deployment would have."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from timonel.endpoints.engine import engine_of
from timonel.endpoints.launch import preview
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.services.engine import KubernetesServiceEngine
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import NotFoundError, SpecError
from timonel.storage import Workspace, find_workspace
from timonel.storage.document_store import FolderDocuments
from timonel.storage.object_store import ObjectStore


class Cluster(KubernetesServiceEngine):
    """The engine without a cluster: its documents are in a folder."""

    folder: Path

    @classmethod
    def of(cls, workspace: Workspace) -> Cluster:
        class Client:
            user_agent = ""

        return cls(Api("team", Client()), ClusterSettings(image="registry.example/serve:1"))

    def documents(self, folder: str) -> FolderDocuments:  # type: ignore[override]
        return FolderDocuments(self.folder / folder)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Cluster.folder = tmp_path
    monkeypatch.setattr(
        "timonel.endpoints.engine.service_engine_type", lambda name: {"kubernetes": Cluster}[name]
    )
    monkeypatch.setattr("timonel.endpoints.engine.service_engine_names", lambda: ["kubernetes"])
    monkeypatch.setattr(
        "timonel.endpoints.engine.get_service_engine", lambda _, workspace: Cluster.of(workspace)
    )
    engine_of.cache_clear()
    folder = tmp_path / "bucket"
    made = find_workspace(f"file://{folder}")
    remote = Workspace(made.root, "s3://bucket/team")
    yield remote
    engine_of.cache_clear()


@pytest.fixture
def model() -> str:
    place = f"memory://{uuid.uuid4().hex}/digits"
    ObjectStore(place).write("3/saved_model.pb", b"x")
    return place


def test_a_deployment_shows_its_objects(bucket: Workspace, model: str, tmp_path: Path) -> None:
    objects = preview(model, workspace=bucket, on="kubernetes", min_replicas=2, cpus=2.0)
    kinds = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert kinds == [
        ("Deployment", "endpoints-controller"),
        ("PodDisruptionBudget", "endpoints-controller"),
        ("ServiceAccount", "endpoints-controller"),
        ("Role", "endpoints-controller"),
        ("RoleBinding", "endpoints-controller"),
        ("Deployment", "digits-v3"),
        ("PodDisruptionBudget", "digits-v3"),
    ]
    (server,) = objects[5]["spec"]["template"]["spec"]["containers"]
    assert server["image"] == "registry.example/serve:1"
    assert server["resources"]["requests"]["cpu"] == "2000m"
    assert {"serve", "--version", "3"} <= set(server["args"])
    assert FolderDocuments(tmp_path / "endpoints").find() == []


def test_files_of_this_machine_are_refused(bucket: Workspace, model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a=b")
    with pytest.raises(SpecError, match="--api-keys names files of this machine"):
        preview(model, workspace=bucket, on="kubernetes", api_keys=str(keys))
    local = tmp_path / "models/digits"
    (local / "1").mkdir(parents=True)
    (local / "1/saved_model.pb").write_text("x")
    with pytest.raises(SpecError, match="servers of a cluster cannot read the model"):
        preview(str(local), workspace=bucket, on="kubernetes")


def test_an_unknown_version_is_refused(bucket: Workspace, model: str) -> None:
    with pytest.raises(NotFoundError, match="digits has no version 7") as refused:
        preview(f"{model}/7", workspace=bucket, on="kubernetes")
    assert refused.value.hint == "it has 3"
