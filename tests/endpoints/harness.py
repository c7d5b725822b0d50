"""Endpoints of the fake runtime, in a workspace of their own, and clients of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import httpx
import numpy as np
import psutil

from tests.waiting import until
from timonel.endpoints import Endpoint, deploy, list_endpoints
from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.gateway.process import SERVICE as GATEWAY
from timonel.endpoints.spec import service_name
from timonel.engines import ReplicaStatus, ServiceEngine, ServiceStatus, get_service_engine
from timonel.engines.local.services import daemon
from timonel.engines.local.services.folder import ServiceFolder
from timonel.errors import NotFoundError
from timonel.processes.tree import Identity, descendants, kill_all, marked, own_identity
from timonel.serving.protos.messages import predict_pb2
from timonel.serving.protos.tensors import from_proto, to_proto
from timonel.storage import Workspace

SERVER_ARGS = ("--runtime", "fake", "--no-page")
IDLE = {"window_s": 6, "scale_to_zero_grace_s": 0, "min_replicas": 0, "max_replicas": 3}
"""The scaling policy that is fastest at zero."""
_OWNER = "test-process.json"
_PREDICT = "/tensorflow.serving.PredictionService/Predict"


def write_version(workspace: Workspace, version: int, text: str | None = None) -> Path:
    """Write a version of the model ``digits``, which multiplies by its number."""
    folder = workspace.models / "digits" / str(version)
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text(str(version) if text is None else text)
    return folder


@dataclass
class Endpoints:
    """The endpoints of a workspace."""

    workspace: Workspace

    @property
    def engine(self) -> ServiceEngine:
        return get_service_engine(None, self.workspace)

    def deploy(self, model: str = "digits", **options: Any) -> Endpoint:
        options.setdefault("server_args", SERVER_ARGS)
        known = {each.name for each in list_endpoints(self.workspace)}
        if options.get("name", "digits") not in known:
            # Tests run at the same time, and the usual port is the first free one.
            with socket.create_server(("127.0.0.1", 0)) as free:
                options.setdefault("port", free.getsockname()[1])
        return deploy(model, workspace=self.workspace, **options)

    def replica(self, service: str, name: str) -> ReplicaStatus:
        """Status of a replica."""
        (found,) = (each for each in self.engine.service(service).replicas if each.name == name)
        return found

    def pid(self, service: str, replica: str) -> int:
        """PID of a replica."""
        folder = ServiceFolder(self.workspace.services / service).replica_dir(replica)
        return int(json.loads((folder / "process.json").read_text())["pid"])

    def signal_replica(self, service: str, replica: str, number: int) -> None:
        """Send a signal to all processes of a replica."""
        pid = self.pid(service, replica)
        for each in (pid, *descendants(pid)):
            os.kill(each, number)

    def pids(self, service: str) -> list[int]:
        """PIDs of the replicas of a service."""
        folder = self.workspace.services / service / "replicas"
        found = []
        for path in folder.glob("*/process.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int(json.loads(path.read_text())["pid"]))
        return found

    def kill(self, service: str, number: int = signal.SIGKILL) -> list[int]:
        """Send a signal to all replicas of a service; return their PIDs."""
        pids = self.pids(service)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def service(self, endpoint: Endpoint, version: int = 1) -> ServiceStatus:
        """Status of the service of a version."""
        return self.engine.service(service_name(endpoint.name, version))

    def supervisor(self, service: str) -> Identity:
        """The supervisor of a service."""
        folder = ServiceFolder(self.workspace.services / service)
        found = Identity.from_json(folder.read_record().supervisor)
        assert found is not None
        return found

    def to_zero(self, endpoint: Endpoint, **scaling: object) -> None:
        """Let an endpoint scale to zero, and wait until it has."""
        before = endpoint.spec.scaling.model_dump()
        endpoint.change("idle", scaling={**before, **IDLE, **scaling})
        self.wait_for_zero(endpoint)

    def wait_for_zero(self, endpoint: Endpoint) -> None:
        """Wait until an endpoint has no replica."""
        until(lambda: self.service(endpoint).requested == 0)
        until(lambda: not self.service(endpoint).replicas)
        until(lambda: endpoint.state == "idle")

    def kill_control(self) -> list[int]:
        return self.kill(SERVICE)

    def kill_gateway(self) -> list[int]:
        return self.kill(GATEWAY)

    def end(self) -> None:
        """Delete everything and check that nothing is left."""
        for endpoint in list_endpoints(self.workspace):
            with contextlib.suppress(NotFoundError):
                endpoint.delete()
        until(lambda: not self.engine.services(), seen=self.engine.services)


@contextlib.contextmanager
def endpoints_in(workspace: Workspace) -> Iterator[Endpoints]:
    """Endpoints that are gone after the block, and those of earlier runs that were killed, too."""
    for services in {folder.parent for _, folder in _daemons()}:
        if _is_abandoned(services):
            _kill_services(services)
    (workspace.root / _OWNER).write_text(json.dumps(own_identity().as_json()))
    made = Endpoints(workspace)
    try:
        yield made
        made.end()
    finally:
        _kill_services(workspace.services)


def _daemons() -> Iterator[tuple[int, Path]]:
    """Yield the PIDs of guards and supervisors, each with the folder of its service."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if daemon.__name__ in words:
            yield process.pid, Path(words[-1])


def _is_abandoned(services: Path) -> bool:
    """Return whether the test process that made the services has ended."""
    try:
        owner = Identity.from_json(json.loads((services.parent / _OWNER).read_text()))
    except (OSError, ValueError):
        return False  # not of these tests
    return owner is not None and not owner.is_alive


def _kill_services(services: Path) -> None:
    """Kill guards and supervisors, which would start replicas again, and then replicas."""
    kill_all(lambda: [pid for pid, folder in _daemons() if folder.parent == services])
    for path in services.glob("[!.]*"):
        kill_all(lambda path=path: marked(f"service {path}"))  # type: ignore[misc]


@contextlib.contextmanager
def stopped(*processes: Identity) -> Iterator[None]:
    """Stop processes with SIGSTOP for the time of the block."""
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def predict(
    endpoint: Endpoint, *values: float, timeout_s: float = 60, **options: Any
) -> httpx.Response:
    """Ask over REST."""
    body = {"instances": list(values or (1.0,))}
    url = f"{endpoint.url}/v1/models/digits:predict"
    return httpx.post(url, json=body, timeout=timeout_s, **options)


def ask_by_grpc(endpoint: Endpoint, value: float = 1.0, timeout_s: float = 60) -> float:
    """Ask over gRPC."""
    with channel_to(endpoint) as channel:
        return GrpcClient(channel).ask(value, timeout_s)[1]


def channel_to(endpoint: Endpoint) -> grpc.Channel:
    """Return a channel to an endpoint."""
    return grpc.insecure_channel(f"127.0.0.1:{endpoint.spec.port}")


class GrpcClient:
    """Client over gRPC."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._call = channel.unary_unary(
            _PREDICT,
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )

    def ask(self, value: float, timeout_s: float = 60) -> tuple[str, float]:
        """Return the version that answered, and its prediction."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "digits"
        request.inputs["x"].CopyFrom(to_proto(np.array([value], np.float32)))
        answer, call = self._call.with_call(request, timeout=timeout_s)
        version = dict(call.initial_metadata())["x-timonel-version"]
        return str(version), float(from_proto("y", answer.outputs["y"])[0])


class _Rest:
    """Client over REST."""

    def __init__(self, client: httpx.Client, endpoint: Endpoint) -> None:
        self._client = client
        self._url = f"{endpoint.url}/v1/models/digits:predict"

    def ask(self, value: float) -> tuple[str, float]:
        """Return the version that answered, and its prediction.

        Raises:
            httpx.HTTPError: The request failed, or the status is not 200.
        """
        response = self._client.post(self._url, json={"instances": [value]})
        if response.status_code != 200:
            raise httpx.HTTPError(f"{response.status_code} {response.text[:200]}")
        (prediction,) = response.json()["predictions"]
        return response.headers["x-timonel-version"], float(prediction)


def versions_of(responses: list[httpx.Response]) -> dict[str, int]:
    """Count responses by the version that made them."""
    counts: dict[str, int] = {}
    for response in responses:
        assert response.status_code == 200, response.text
        version = response.headers["x-timonel-version"]
        assert response.json() == {"predictions": [float(version)]}
        counts[version] = counts.get(version, 0) + 1
    return counts


class Load:
    """Clients that ask all the time; every answer that is not the right prediction is kept.

    Versions multiply by their number. Each client sends another value, so an answer to another
    client is a wrong one.

    Args:
        endpoint: Asked endpoint.
        clients: Requests at once over REST.
        by_grpc: Requests at once over gRPC.
        value: What clients send, plus less than 0.1; the fake model takes ``value - 1`` seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        clients: int = 4,
        *,
        by_grpc: int = 0,
        value: float = 0.5,
        factors: Mapping[int, float] | None = None,
    ) -> None:
        self.asked = 0
        self.answered = 0
        self.failures: list[str] = []
        self.versions: set[str] = set()
        self._value = value
        self._factors = factors or {}
        self._ends = False
        self._pool = ThreadPoolExecutor(clients + by_grpc)
        self._clients = [
            *(self._pool.submit(self._ask_by_rest, endpoint, n) for n in range(clients)),
            *(self._pool.submit(self._ask_by_grpc, endpoint, n) for n in range(by_grpc)),
        ]

    def _ask_by_rest(self, endpoint: Endpoint, number: int) -> None:
        with httpx.Client(timeout=60, verify=False) as client:
            self._ask(_Rest(client, endpoint), number)

    def _ask_by_grpc(self, endpoint: Endpoint, number: int) -> None:
        with channel_to(endpoint) as channel:
            self._ask(GrpcClient(channel), number)

    def _ask(self, client: _Rest | GrpcClient, number: int) -> None:
        value = self._value + number / 2048
        while not self._ends:
            self.asked += 1
            try:
                version, prediction = client.ask(value)
            except (httpx.HTTPError, grpc.RpcError) as error:
                self.failures.append(_text(error))
                continue
            factor = self._factors.get(int(version), int(version))
            if abs(prediction - value * factor) < 1e-4:  # rounded in JSON
                self.answered += 1
                self.versions.add(version)
            else:
                self.failures.append(f"version {version}: {value} gave {prediction}")

    def more(self, count: int = 20) -> None:
        """Wait until so many more requests were answered."""
        goal = self.answered + count
        until(lambda: self.answered >= goal, seen=lambda: self.failures[-3:])

    def __enter__(self) -> Self:
        self.more(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._pool.shutdown()
        for client in self._clients:
            client.result()


def _text(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code()} {error.details()}"
    return str(error) if type(error) is httpx.HTTPError else repr(error)
