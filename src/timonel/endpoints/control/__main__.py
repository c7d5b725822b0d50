"""``python -m timonel.endpoints.control WORKSPACE HOST PORT [FOLDER]``: the control plane.

It is a service. With FOLDER, which it shares with Envoy beside it, it is one of several replicas.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from timonel.endpoints.control.activator import listen
from timonel.endpoints.control.console.address import bind_pages
from timonel.endpoints.control.console.app import Console
from timonel.endpoints.control.controller import EndpointController
from timonel.endpoints.control.envoy import EnvoyService, EnvoySidecar
from timonel.endpoints.control.gateway import Gateway
from timonel.endpoints.control.health import Health
from timonel.endpoints.engine import FOLDER, engine_of
from timonel.endpoints.gateway import sidecar
from timonel.endpoints.gateway.process import runtime_dir
from timonel.logs import configure_logging
from timonel.serving.ports import bind
from timonel.serving.rest_server import RestServer
from timonel.storage import Workspace, exclusive, find_workspace
from timonel.storage.locks import LockedError

PAGES_PORT = 15080
"""Loopback port of the pages where the engine forwards ports, as `kubectl port-forward` does."""
_LOCK_TIMEOUT_S = 60.0
_GRACE_S = 1.0
_POLL_S = 0.5
_DRAIN_S = 45.0
_IDLE_S = 5.0

logger = logging.getLogger(__name__)


async def _serve(
    controller: EndpointController,
    console: Console,
    health: socket.socket,
    pages: socket.socket,
    *,
    is_beside: bool = False,
) -> None:
    """Run the control plane; ``is_beside`` a gateway that ends with it."""
    own = Health(controller.is_ready, controller.held, controller.ask_envoy)
    servers = [RestServer(own, health, _GRACE_S, {}), RestServer(console, pages, _GRACE_S, {})]
    for server in servers:
        await server.start()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(listen(controller.activator, controller.activator_socket)),
                group.create_task(console.sample()),
            ]
            await controller.run()
            for other in others:
                other.cancel()
    finally:
        if is_beside:
            controller.activator.close()
        for server in servers:
            await server.stop()


def _run_alone(workspace: Workspace, host: str, port: int) -> None:
    """Run the only control plane of a workspace in a folder."""
    engine = engine_of(workspace)
    # A second one, started by hand, waits here and gives up.
    with exclusive(workspace.endpoints / "controller.lock", timeout_s=_LOCK_TIMEOUT_S):
        sockets = runtime_dir(workspace.endpoints)
        process = EnvoyService(engine, sockets)
        gateway = Gateway(process, workspace.endpoints / ".gateway", sockets)
        controller = EndpointController(workspace, engine, process, gateway)
        console = Console(
            engine.documents(FOLDER),
            lambda name: workspace.endpoints / name / "history.jsonl",
            controller.recent_loads,
        )
        bound = bind(host, port, "health")
        asyncio.run(_serve(controller, console, bound, bind_pages(workspace.endpoints)))


def _run_with_sidecar(workspace: Workspace, host: str, port: int, folder: Path) -> None:
    """Run one of several control planes, with the Envoy that shares a folder with it."""
    engine = engine_of(workspace)
    sockets, history = folder / sidecar.SOCKETS, folder / "history"
    for each in (sockets, history):
        each.mkdir(mode=0o700, exist_ok=True)
    process = EnvoySidecar(sockets, sidecar.READY_PORT)
    gateway = Gateway(process, folder / sidecar.CONFIG, sockets)
    controller = EndpointController(workspace, engine, process, gateway, host=host)
    console = Console(
        engine.documents(FOLDER), lambda name: history / f"{name}.jsonl", controller.recent_loads
    )
    bound = bind(host, port, "health")
    try:
        pages = bind("127.0.0.1", PAGES_PORT, "pages")
        asyncio.run(_serve(controller, console, bound, pages, is_beside=True))
    finally:
        engine.close()
        _drain(gateway)


def _drain(gateway: Gateway) -> None:
    """Wait until clients have moved to other gateways: Envoy ends after this process.

    A connection without requests stays open; its client loses nothing.
    """
    gateway.drain()
    begun = time.monotonic()
    while gateway.active("cx"):
        waited_s = time.monotonic() - begun
        if waited_s > _DRAIN_S or (waited_s > _IDLE_S and not gateway.active("rq")):
            return
        time.sleep(_POLL_S)


def main(arguments: Sequence[str]) -> None:
    """Run the control plane until the last endpoint is deleted, or SIGTERM."""
    configure_logging(format_="%(asctime)s %(levelname)s %(message)s")
    location, host, port, *shared = arguments
    workspace = find_workspace(location, create=False)
    try:
        if shared:
            _run_with_sidecar(workspace, host, int(port), Path(shared[0]))
        else:
            _run_alone(workspace, host, int(port))
    except asyncio.CancelledError:
        return  # SIGTERM: the engine stops it


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LockedError as held:
        sys.exit(f"another control plane runs this workspace's endpoints: {held}")
