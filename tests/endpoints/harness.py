"""Endpoints of the fake runtime, in a workspace of their own, and clients of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from tests.waiting import until
from timonel.endpoints import Endpoint, deploy, list_endpoints
from timonel.endpoints.control.service import SERVICE
from timonel.endpoints.gateway.process import SERVICE as GATEWAY
from timonel.engines import ServiceEngine, get_service_engine
from timonel.errors import NotFoundError
from timonel.processes.tree import kill_all, marked
from timonel.storage import Workspace

SERVER_ARGS = ("--runtime", "fake", "--isolation", "none", "--no-page")


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
    """Endpoints that are gone after the block."""
    made = Endpoints(workspace)
    try:
        yield made
        made.end()
    finally:
        for path in workspace.services.glob("[!.]*"):
            kill_all(lambda path=path: marked(f"service {path}"))  # type: ignore[misc]


def predict(endpoint: Endpoint, *values: float, **options: Any) -> httpx.Response:
    """Ask over REST."""
    body = {"instances": list(values or (1.0,))}
    url = f"{endpoint.url}/v1/models/digits:predict"
    return httpx.post(url, json=body, timeout=60, **options)


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
    """Clients that ask all the time; every answer that is not a prediction is kept.

    Args:
        endpoint: Asked endpoint.
        clients: Requests at once.
    """

    def __init__(self, endpoint: Endpoint, clients: int = 4) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self.versions: set[str] = set()
        self._ends = False
        self._url = f"{endpoint.url}/v1/models/digits:predict"
        self._pool = ThreadPoolExecutor(clients)
        self._clients = [self._pool.submit(self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._ends:
                try:
                    response = client.post(self._url, json={"instances": [1.0]})
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                if response.status_code == 200:
                    self.answered += 1
                    self.versions.add(response.headers["x-timonel-version"])
                else:
                    self.failures.append(f"{response.status_code} {response.text[:200]}")

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
