"""Predict with the name of an endpoint on a cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.control.test_controller import ClusterEngine
from timonel.endpoints import client
from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.engine import FOLDER, engine_of
from timonel.endpoints.folder import EndpointFolder
from timonel.endpoints.spec import EndpointSpec
from timonel.engines import ServiceSpec
from timonel.errors import EngineError, NotFoundError, ServingError, TimonelError
from timonel.storage import Workspace

pytestmark = pytest.mark.enable_socket


class Cluster(ClusterEngine):
    """A cluster whose endpoints have an address, or which cannot be asked."""

    public = ""
    error: TimonelError | None = None

    def documents(self, folder: str) -> Any:
        if self.error is not None:
            raise self.error
        return super().documents(folder)

    def address(self, name: str, host: str, port: int) -> str:
        return self.public

    def forward_command(self, name: str, port: int) -> str:
        return f"forward {name}"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    engine = Cluster(tmp_path / "documents")
    monkeypatch.setattr("timonel.endpoints.engine.service_engine_names", lambda: ["cluster"])
    monkeypatch.setattr("timonel.endpoints.engine.service_engine_type", lambda _: Cluster)
    monkeypatch.setattr("timonel.endpoints.engine.get_service_engine", lambda *_: engine)
    engine_of.cache_clear()
    engine.apply(ServiceSpec(name=SERVICE, module="control"))
    yield engine
    engine_of.cache_clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Servers and models that are asked for predictions."""
    found: list[object] = []

    def predict_with_server(server: object, inputs: object, **_: object) -> list[object]:
        found.append(server)
        return []

    monkeypatch.setattr(client, "predict_with_server", predict_with_server)
    return found


@pytest.fixture
def bucket(tmp_path: Path, cluster: Cluster) -> Workspace:
    spec = EndpointSpec(
        name="digits",
        model="s3://bucket/digits",
        port=8501,
        traffic={"percent": {1: 100}},
        access={"tls": {"cert": "cert.pem", "key": "key.pem"}, "contents": "0" * 32},
    )
    EndpointFolder(cluster.documents(FOLDER), "digits").add(spec, "deploy", after=0)
    return Workspace(tmp_path / "copy", "s3://bucket/team")


def test_an_endpoint_of_a_cluster_answers_at_its_address(
    bucket: Workspace, cluster: Cluster, asked: list[object]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster.public = f"127.0.0.1:{server.getsockname()[1]}"
        client.predict("digits", [[1.0]], workspace=bucket)
    assert asked == [f"https://{cluster.public}/v1/models/digits"]


def test_an_endpoint_that_cannot_be_reached_from_here_says_how(
    bucket: Workspace, cluster: Cluster, asked: list[object]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster.public = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ServingError) as refused:
        client.predict("digits", [[1.0]], workspace=bucket)
    assert refused.value.message == (
        f"the endpoint digits cannot be reached from this machine at {cluster.public}"
    )
    address = "https://127.0.0.1:8501/v1/models/digits"
    assert refused.value.hint == f"run 'forward digits' and use {address}"
    assert asked == []


def test_an_endpoint_without_a_control_plane_does_not_run(
    bucket: Workspace, cluster: Cluster
) -> None:
    cluster.delete(SERVICE)
    with pytest.raises(ServingError, match="does not run"):
        client.predict("digits", [[1.0]], workspace=bucket)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotFoundError("no kubeconfig"), ""),
        (EngineError("the cluster does not answer"), "the cluster does not answer"),
    ],
)
def test_models_of_a_bucket_need_no_cluster(
    bucket: Workspace,
    cluster: Cluster,
    asked: list[object],
    caplog: pytest.LogCaptureFixture,
    error: TimonelError,
    said: str,
) -> None:
    client.predict("flowers", [[1.0]], workspace=bucket)
    cluster.error = error
    engine_of.cache_clear()
    client.predict("digits", [[1.0]], workspace=bucket)
    assert asked == ["flowers", "digits"]
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)
