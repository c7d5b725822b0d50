"""Turns of the control plane with an engine in memory: what concerns one endpoint stays there."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.endpoints.harness import write_version
from timonel.endpoints.access_documents import AccessDocuments
from timonel.endpoints.autoscaling import ScalingPolicy
from timonel.endpoints.control.controller import EndpointController
from timonel.endpoints.control.envoy import EnvoyService
from timonel.endpoints.control.gateway import Gateway
from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.folder import EndpointFolder
from timonel.endpoints.gateway.parts import SERVICE_HEADER, Secrets
from timonel.endpoints.gateway.process import SERVICE as GATEWAY
from timonel.endpoints.spec import Access, EndpointSpec, Traffic
from timonel.engines import (
    AutoscalerSpec,
    ReplicaStatus,
    ServiceEngine,
    ServiceSpec,
    ServiceState,
    ServiceStatus,
)
from timonel.errors import EngineError, NotFoundError, TimonelError
from timonel.storage import Workspace, find_workspace
from timonel.storage.document_store import DocumentStore, FolderDocuments


@pytest.fixture(autouse=True)
def no_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process."""
    monkeypatch.setattr("timonel.endpoints.control.controller.keep_zygote", lambda: None)


@dataclasses.dataclass
class MemoryEngine(ServiceEngine):
    """Services whose replicas start at once; ``broken`` ones raise when they are applied."""

    name = "memory"
    is_one_machine = True
    root: Path
    specs: dict[str, ServiceSpec] = dataclasses.field(default_factory=dict)
    broken: dict[str, Exception] = dataclasses.field(default_factory=dict)
    ready: bool = True
    refusal: Exception | None = None
    delegated: list[tuple[str, AutoscalerSpec | None]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        raise NotImplementedError

    def apply(self, spec: ServiceSpec) -> None:
        if spec.name in self.broken:
            raise self.broken[spec.name]
        before = self.specs.get(spec.name)
        size = spec.replicas if before is None or spec.replicas is not None else before.replicas
        self.specs[spec.name] = spec.model_copy(update={"replicas": size})

    def scale(self, name: str, replicas: int) -> None:
        self.specs[name] = self.specs[name].model_copy(update={"replicas": replicas})

    def autoscale(self, name: str, rules: AutoscalerSpec | None) -> None:
        self.delegated.append((name, rules))
        if self.refusal is not None:
            raise self.refusal

    def service(self, name: str) -> ServiceStatus:
        if name not in self.specs:
            raise NotFoundError(name)
        spec = self.specs[name]
        replicas = tuple(
            ReplicaStatus(
                name=f"{name}-{number}",
                revision=spec.revision,
                state="ready" if self.ready else "starting",
                addresses=dict.fromkeys(spec.ports, "127.0.0.1:9"),
            )
            for number in range(spec.replicas or 0)
        )
        return ServiceStatus(
            name=name,
            revision=spec.revision,
            digest=spec.digest,
            state=ServiceState.ACTIVE,
            requested=spec.replicas or 0,
            replicas=replicas,
        )

    def services(self) -> list[ServiceStatus]:
        return [self.service(name) for name in self.specs]

    def logs(self, name: str, replica: str, *, follow: bool = False) -> Iterator[str]:
        raise NotImplementedError

    def documents(self, folder: str) -> DocumentStore:
        return FolderDocuments(self.root / folder)

    def delete(self, name: str) -> None:
        self.service(name)
        del self.specs[name]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = find_workspace(tmp_path / ".timonel")
    for version in (1, 2):
        write_version(made, version)
    return made


@pytest.fixture
def engine(workspace: Workspace) -> MemoryEngine:
    return MemoryEngine(workspace.root)


def controller_of(workspace: Workspace, engine: MemoryEngine) -> EndpointController:
    envoy = EnvoyService(engine, workspace.root)
    gateway = Gateway(envoy, workspace.endpoints / ".gateway", workspace.root)
    return EndpointController(workspace, engine, envoy, gateway)


def root_of(folder: EndpointFolder) -> Path:
    return Path(folder.documents.place(folder.name))


def endpoint(workspace: Workspace, name: str, version: int = 1, after: int = 0) -> EndpointFolder:
    folder = EndpointFolder(FolderDocuments(workspace.endpoints), name)
    spec = EndpointSpec(
        name=name,
        model="digits",
        traffic=Traffic(percent={version: 100}),
        port=1,
    )
    folder.add(spec, "deploy", after=after)
    return folder


def turns(controller: EndpointController, count: int = 3) -> None:
    async def run() -> None:
        for _ in range(count):
            controller._published_at = 0.0  # each turn publishes
            assert await controller._turn()

    asyncio.run(run())


@pytest.mark.parametrize("error", [EngineError("no room"), RuntimeError("a bug")])
def test_a_version_that_cannot_be_applied_stops_no_other(
    workspace: Workspace, engine: MemoryEngine, error: Exception
) -> None:
    good, bad = endpoint(workspace, "good"), endpoint(workspace, "bad")
    controller = controller_of(workspace, engine)
    turns(controller)
    assert [folder.status().routed for folder in (good, bad)] == [1, 1]
    engine.broken["bad-v2"] = error
    endpoint(workspace, "bad", 2, after=1)
    endpoint(workspace, "good", 2, after=1)
    turns(controller)
    assert [folder.status().routed for folder in (good, bad)] == [2, 1]
    assert str(error) in (bad.status().message or "")
    assert good.status().message is None
    engine.broken.clear()
    turns(controller)
    assert (bad.status().routed, bad.status().message) == (2, None)


def test_a_new_control_plane_keeps_what_applies_without_readable_revisions(
    workspace: Workspace, engine: MemoryEngine
) -> None:
    folder = endpoint(workspace, "digits")
    turns(controller_of(workspace, engine))
    config = workspace.endpoints / ".gateway"
    before = (config / "listeners" / "current.json").read_text()
    (root_of(folder) / "revisions" / "000001.json").write_text("{")
    turns(controller_of(workspace, engine))
    assert (config / "listeners" / "current.json").read_text() == before
    assert "127.0.0.1" in (config / "digits-v1-http" / "current.json").read_text()
    assert "000001.json" in (folder.status().message or "")


def test_a_revision_may_be_replaced_by_hand(workspace: Workspace, engine: MemoryEngine) -> None:
    folder = endpoint(workspace, "digits")
    controller = controller_of(workspace, engine)
    turns(controller)
    endpoint(workspace, "digits", 2, after=1)
    path = root_of(folder) / "revisions" / "000002.json"
    text = path.read_text()
    path.write_text("{")
    turns(controller)
    assert folder.status().routed == 1
    path.unlink()
    turns(controller)
    assert folder.status().message is None
    path.write_text(text)
    turns(controller)
    assert (folder.status().routed, "digits-v2" in engine.specs) == (2, True)


def test_changed_settings_of_an_idle_version_start_one_replica(
    workspace: Workspace, engine: MemoryEngine
) -> None:
    folder = endpoint(workspace, "digits")
    controller = controller_of(workspace, engine)
    turns(controller)
    engine.scale("digits-v1", 0)
    engine.ready = False
    spec = folder.revision().spec
    changed = spec.model_copy(update={"server_args": (*spec.server_args, "--max-body", "1KiB")})
    folder.add(changed, "deploy", after=1)
    turns(controller)
    assert (engine.specs["digits-v1"].replicas, folder.status().routed) == (1, 1)
    engine.ready = True
    turns(controller)
    assert folder.status().routed == 2


def test_the_gateway_ends_with_the_last_endpoint(
    workspace: Workspace, engine: MemoryEngine
) -> None:
    folder = endpoint(workspace, "digits")
    controller = controller_of(workspace, engine)
    turns(controller)
    assert GATEWAY in engine.specs
    folder.delete()
    asyncio.run(controller.run())
    assert engine.specs == {}
    assert not root_of(folder).exists()


class ClusterEngine(MemoryEngine):
    """Services of several machines: this process leads or follows; names are exposed."""

    is_one_machine = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_leader = False
        self.exposed: dict[str, int] = {}
        self.fault: TimonelError | None = None

    def leads(self, service: str) -> bool:
        return self.is_leader

    def confidential(self, folder: str) -> DocumentStore:
        if self.fault is not None:
            raise self.fault
        return FolderDocuments(self.root / "confidential")

    def expose(self, name: str, service: str, port: int, *, has_tls: bool) -> None:
        self.exposed[name] = port

    def conceal(self, name: str) -> None:
        self.exposed.pop(name, None)


class LiveEnvoy(EnvoyService):
    """Stands for an Envoy beside the control plane, which the engine starts."""

    @property
    def is_running(self) -> bool:
        return True


def cluster_controller(workspace: Workspace, engine: ClusterEngine) -> EndpointController:
    folder = workspace.root / "shared"
    envoy = LiveEnvoy(engine, folder)
    gateway = Gateway(envoy, folder / "config", folder)
    return EndpointController(workspace, engine, envoy, gateway, host="127.0.0.9")


def require_key(engine: ClusterEngine, folder: EndpointFolder, key: str, after: int) -> Access:
    """Deploy an endpoint with an API key; return its access."""
    before = folder.revision().spec
    documents = AccessDocuments.of(engine, folder.name)
    with documents.adding(Secrets(api_keys={"shop": key}), folder, after) as added:
        made = Access(api_keys="/of/another/machine", contents=added)
        folder.add(before.model_copy(update={"access": made}), "deploy", after=after)
    return made


def listeners(workspace: Workspace) -> str:
    return (workspace.root / "shared/config/listeners/current.json").read_text()


@pytest.mark.parametrize("is_leader", [True, False])
def test_each_gateway_gets_the_keys_of_the_latest_revision(
    workspace: Workspace, is_leader: bool
) -> None:
    engine = ClusterEngine(workspace.root)
    folder = endpoint(workspace, "digits")
    engine.is_leader = True
    controller = cluster_controller(workspace, engine)
    turns(controller)
    engine.is_leader = is_leader
    again(controller)
    access = require_key(engine, folder, "first-0123456789", 1)
    turns(controller, 1)
    assert "first-0123456789" in listeners(workspace)
    require_key(engine, folder, "second-0123456789", 2)
    turns(controller, 1)
    assert "first-0123456789" not in listeners(workspace)
    assert "second-0123456789" in listeners(workspace)
    # As a rollback does.
    folder.add(folder.revision(2).spec, "rollback to 2", after=3)
    turns(controller, 1)
    assert "first-0123456789" in listeners(workspace)
    assert folder.status().contents == (access.contents if is_leader else None)


def test_former_keys_stay_while_new_ones_cannot_be_read(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.endpoints.control.endpoint._RETRY_S", 0.0)
    engine = ClusterEngine(workspace.root)
    engine.is_leader = True
    folder = endpoint(workspace, "digits")
    first = require_key(engine, folder, "first-0123456789", 1)
    turns(cluster_controller(workspace, engine))
    second = require_key(engine, folder, "second-0123456789", 2)
    engine.fault = EngineError("not allowed to get secrets")
    # Also for a control plane that has just started.
    for controller in (
        cluster_controller(workspace, engine),
        cluster_controller(workspace, engine),
    ):
        turns(controller)
        assert "first-0123456789" in listeners(workspace)
        status = folder.status()
        assert status.message == "not allowed to get secrets; the former ones stay"
        assert status.contents != second.contents
    engine.fault = None
    turns(controller)
    assert "second-0123456789" in listeners(workspace)
    status = folder.status()
    assert (status.message, status.contents) == (None, second.contents)
    assert first.contents != second.contents


def test_an_endpoint_whose_keys_are_missing_accepts_no_request(workspace: Workspace) -> None:
    engine = ClusterEngine(workspace.root)
    engine.is_leader = True
    folder, other = endpoint(workspace, "digits"), endpoint(workspace, "other")
    access = require_key(engine, folder, "first-0123456789", 1)
    AccessDocuments.of(engine, "digits").remove()
    turns(cluster_controller(workspace, engine))
    assert "digits@" not in listeners(workspace)
    assert "other@" in listeners(workspace)
    message = folder.status().message or ""
    assert message.startswith("the keys or the certificate of digits are missing")
    assert "no request is accepted" in message
    assert folder.status().contents != access.contents
    assert other.status().message is None


def again(controller: EndpointController) -> None:
    controller._led_at = -1e9
    turns(controller)


def test_only_the_leader_changes_services_and_documents(workspace: Workspace) -> None:
    engine = ClusterEngine(workspace.root)
    folder = endpoint(workspace, "digits")
    controller = cluster_controller(workspace, engine)
    turns(controller)
    assert (engine.specs, engine.exposed, folder.status().at) == ({}, {}, 0.0)
    engine.is_leader = True
    again(controller)
    assert (list(engine.specs), engine.exposed) == (["digits-v1"], {"digits": 1})
    assert folder.status().routed == 1
    engine.is_leader = False
    again(controller)
    # Another leader may have exposed it otherwise.
    engine.exposed.clear()
    engine.is_leader = True
    again(controller)
    assert engine.exposed == {"digits": 1}
    engine.is_leader = False
    folder.delete()
    again(controller)
    assert "digits-v1" in engine.specs
    engine.is_leader = True
    again(controller)
    assert (engine.specs, engine.exposed, folder.numbers()) == ({}, {}, [])


def test_a_follower_configures_its_gateway(workspace: Workspace) -> None:
    engine = ClusterEngine(workspace.root)
    endpoint(workspace, "digits")
    engine.is_leader = True
    turns(cluster_controller(workspace, engine))
    engine.is_leader = False
    (workspace.root / "shared").rename(workspace.root / "of-the-leader")
    turns(cluster_controller(workspace, engine))
    clusters = workspace.root / "shared/config/digits-v1-http/current.json"
    assert "127.0.0.1" in clusters.read_text()


def test_a_follower_starts_a_first_replica_for_requests_that_wait_there(
    workspace: Workspace,
) -> None:
    engine = ClusterEngine(workspace.root)
    endpoint(workspace, "digits")
    engine.is_leader = True
    turns(cluster_controller(workspace, engine))
    engine.scale("digits-v1", 0)
    engine.is_leader = False
    follower = cluster_controller(workspace, engine)
    turns(follower)
    assert engine.specs["digits-v1"].replicas == 0

    async def hold() -> None:
        async def receive() -> dict[str, str]:
            await asyncio.Event().wait()
            return {}

        async def send(_: Any) -> None:
            return

        headers = [(SERVICE_HEADER.encode(), b"digits-v1")]
        scope = {"type": "http", "headers": headers}
        waiting = asyncio.ensure_future(follower.activator(scope, receive, send))
        await asyncio.sleep(0)
        engine.ready = False
        await follower._turn()
        waiting.cancel()

    asyncio.run(hold())
    assert engine.specs["digits-v1"].replicas == 1


def test_the_control_plane_of_a_cluster_ends_when_it_is_not_used(
    workspace: Workspace, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ClusterEngine(workspace.root)
    cluster.is_leader = True
    cluster.specs[SERVICE] = ServiceSpec(name=SERVICE, module="x", replicas=2)
    controller = cluster_controller(workspace, cluster)
    turns(controller)
    assert SERVICE in cluster.specs  # a command may be about to make an endpoint
    monkeypatch.setattr("timonel.endpoints.control.controller._UNUSED_S", -1.0)
    turns(controller)
    assert SERVICE not in cluster.specs


def test_what_the_cluster_scales_is_left_alone(workspace: Workspace, engine: MemoryEngine) -> None:
    folder = endpoint(workspace, "digits")
    metrics = ({"type": "External"},)
    scaling = ScalingPolicy(
        algorithm="cluster", min_replicas=1, max_replicas=5, cluster_metrics=metrics
    )
    spec = folder.revision().spec
    folder.add(spec.model_copy(update={"scaling": scaling}), "policy", after=1)
    controller = controller_of(workspace, engine)
    turns(controller)
    engine.scale("digits-v1", 4)
    turns(controller)
    assert engine.service("digits-v1").requested == 4
    ((name, rules),) = engine.delegated
    assert name == "digits-v1"
    assert rules is not None
    assert (rules.least, rules.most, rules.metrics) == (1, 5, metrics)
    folder.add(spec, "policy", after=2)
    turns(controller)
    assert engine.delegated[1:] == [("digits-v1", None)]


def test_a_cluster_that_refuses_its_rules_is_asked_again_and_keeps_nothing_else(
    workspace: Workspace, engine: MemoryEngine
) -> None:
    folder = endpoint(workspace, "digits")
    engine.refusal = EngineError("forbidden")
    controller = controller_of(workspace, engine)
    least = ScalingPolicy(min_replicas=3)
    spec = folder.revision().spec
    folder.add(spec.model_copy(update={"scaling": least}), "scale", after=1)
    turns(controller)
    # Rights to what nobody asked for may be missing.
    assert (engine.service("digits-v1").requested, folder.status().message) == (3, None)
    engine.scale("digits-v1", 0)
    scaling = ScalingPolicy(
        algorithm="cluster", min_replicas=2, max_replicas=5, cluster_metrics=({"type": "Pods"},)
    )
    folder.add(spec.model_copy(update={"scaling": scaling}), "policy", after=2)
    turns(controller)
    # A HorizontalPodAutoscaler would leave it at zero.
    assert engine.service("digits-v1").requested == 2
    assert folder.status().message == "forbidden"
    assert len(engine.delegated) == 2  # in six turns
    engine.refusal = None
    controller._sizing.autoscalers.forget()
    turns(controller)
    assert (len(engine.delegated), folder.status().message) == (3, None)
