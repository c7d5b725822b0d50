"""``python -m timonel.endpoints.control WORKSPACE PORT``: the control plane as a service."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from timonel.endpoints.control.activator import listen
from timonel.endpoints.control.controller import Controller
from timonel.endpoints.gateway.process import runtime_dir
from timonel.engines import get_service_engine
from timonel.storage import exclusive, find_workspace
from timonel.storage.locks import LockedError

_LOCK_TIMEOUT_S = 60.0


async def _serve(controller: Controller, port: int) -> None:
    async def alive(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    health = await asyncio.start_server(alive, "127.0.0.1", port)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with health, asyncio.TaskGroup() as group:
        listening = group.create_task(listen(controller.activator, controller.activator_socket))
        await controller.run()
        listening.cancel()


def main(location: str, port: int) -> None:
    """Run the control plane until the last endpoint is deleted, or SIGTERM."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    workspace = find_workspace(location, create=False)
    engine = get_service_engine(None, workspace)
    # A second one, started by hand, waits here and gives up.
    with exclusive(workspace.endpoints / "controller.lock", timeout_s=_LOCK_TIMEOUT_S):
        controller = Controller(workspace, engine, runtime_dir(workspace.root))
        try:
            asyncio.run(_serve(controller, port))
        except asyncio.CancelledError:
            return  # SIGTERM: the engine stops it


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except LockedError as held:
        sys.exit(f"another control plane runs this workspace's endpoints: {held}")
