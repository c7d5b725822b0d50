"""Start and guard a service: ``python -m timonel.engines.local.services.daemon <service folder>``.

The guard restarts the supervisor whenever it is killed or fails. Replicas keep running meanwhile:
the guard becomes their parent, and the next supervisor adopts them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from timonel.engines.local.guard import fork_supervisor, run_guard, wait_for
from timonel.engines.local.services.folder import ServiceFolder
from timonel.engines.local.services.supervisor import ServiceSupervisor
from timonel.processes.backoff import backoff_s
from timonel.processes.tree import kill_all, marked
from timonel.storage import exclusive

_LOCK_TIMEOUT_S = 5.0
_BACKOFF_S = 0.5
_BACKOFF_MAX_S = 30.0


def main(arguments: list[str]) -> int:
    """Fork the guard; return 0 once the service is supervised."""
    folder = ServiceFolder(Path(arguments[0]))
    return run_guard("service guard", partial(_guard, folder))


def _guard(folder: ServiceFolder, writer: int) -> None:
    # The supervisor inherits the lock: it is free only when both are gone.
    with exclusive(folder.supervisor_lock, timeout_s=_LOCK_TIMEOUT_S):
        descriptor: int | None = writer
        in_a_row = 0
        while True:
            begun = time.monotonic()
            supervisor = fork_supervisor(partial(_supervise, folder), descriptor)
            if wait_for(supervisor) == 0:
                return
            if not folder.root.is_dir():
                kill_all(lambda: marked(folder.token))  # somebody removed the service's folder
                return
            if descriptor is not None and not _has_begun(folder, supervisor):
                return  # the command that started it reports the error
            descriptor = None
            in_a_row = 1 if time.monotonic() - begun > _BACKOFF_MAX_S else in_a_row + 1
            time.sleep(backoff_s(in_a_row, _BACKOFF_S, _BACKOFF_MAX_S))


def _supervise(folder: ServiceFolder, accepted: Callable[[], None]) -> None:
    asyncio.run(_run(folder, accepted))


async def _run(folder: ServiceFolder, accepted: Callable[[], None]) -> None:
    await ServiceSupervisor(folder).run(accepted)


def _has_begun(folder: ServiceFolder, supervisor: int) -> bool:
    owner = folder.read_record().supervisor
    return owner is not None and owner["pid"] == supervisor


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
