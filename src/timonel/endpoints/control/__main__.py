"""``python -m timonel.endpoints.control WORKSPACE PORT``: the control plane as a service."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence

from timonel.endpoints.control.activator import listen
from timonel.endpoints.control.console.address import bind_pages
from timonel.endpoints.control.console.app import Console
from timonel.endpoints.control.controller import Controller
from timonel.endpoints.gateway.process import runtime_dir
from timonel.engines import get_service_engine
from timonel.serving.ports import bind
from timonel.serving.rest_server import RestServer
from timonel.storage import exclusive, find_workspace
from timonel.storage.locks import LockedError

_LOCK_TIMEOUT_S = 60.0
_GRACE_S = 1.0


async def _serve(controller: Controller, console: Console, bound: Sequence[socket.socket]) -> None:
    servers = [RestServer(console, each, _GRACE_S, {}) for each in bound]
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
        for server in servers:
            await server.stop()


def main(location: str, port: int) -> None:
    """Run the control plane until the last endpoint is deleted, or SIGTERM."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    workspace = find_workspace(location, create=False)
    engine = get_service_engine(None, workspace)
    # A second one, started by hand, waits here and gives up.
    with exclusive(workspace.endpoints / "controller.lock", timeout_s=_LOCK_TIMEOUT_S):
        controller = Controller(workspace, engine, runtime_dir(workspace.endpoints))
        console = Console(workspace.endpoints, controller.recent_loads)
        try:
            bound = (bind("127.0.0.1", port, "health"), bind_pages(workspace.endpoints))
            asyncio.run(_serve(controller, console, bound))
        except asyncio.CancelledError:
            return  # SIGTERM: the engine stops it


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except LockedError as held:
        sys.exit(f"another control plane runs this workspace's endpoints: {held}")
