from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoints.harness import Endpoints, endpoints_in, write_version
from timonel.endpoints.engine import engine_of
from timonel.engines import OutsideAddress
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.services.engine import KubernetesServiceEngine
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.storage import Workspace, find_workspace
from timonel.storage.document_store import FolderDocuments
from timonel.storage.object_store import ObjectStore


@pytest.fixture(scope="module")
def endpoints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fake_runtime: None
) -> Iterator[Endpoints]:
    """Endpoints of the model ``digits``, whose versions are in the module's ``MODELS``."""
    workspace = find_workspace(tmp_path_factory.mktemp("endpoints") / ".timonel")
    for version, model in request.module.MODELS.items():
        write_version(workspace, version, json.dumps(model))
    with endpoints_in(workspace) as made:
        yield made


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

    def confidential(self, folder: str) -> FolderDocuments:  # type: ignore[override]
        return FolderDocuments(self.folder / "confidential")

    def address(self, name: str, host: str, port: int) -> str:
        return f"{name}.team.svc:{port}"

    def outside(self, name: str) -> OutsideAddress:
        return OutsideAddress(host=f"{name}.models.example.org", message="no Gateway takes it")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace whose endpoints are those of `Cluster`."""
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
    """A model in a bucket, with version 3."""
    place = f"memory://{uuid.uuid4().hex}/digits"
    ObjectStore(place).write("3/saved_model.pb", b"x")
    return place
