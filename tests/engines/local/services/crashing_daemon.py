"""``python -m ...crashing_daemon <service folder>``: the daemon of a service that crashes once.

It kills its supervisor at the point ``CRASH_POINT``, and creates the file ``CRASH_FILE`` before.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timonel.engines.local.services import daemon, replica
from timonel.engines.local.services.folder import ServiceFolder, ServiceRecord

Patch = Callable[[], None]


def _kill(pid: int) -> None:
    try:
        Path(os.environ["CRASH_FILE"]).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(pid, signal.SIGKILL)
    # A child goes on once its parent is dead, if the kernel lets it.
    while os.getppid() == pid:
        time.sleep(0.001)


def _before(owner: Any, name: str, pid: Callable[[], int], condition: Any = None) -> Patch:
    def patch() -> None:
        real = getattr(owner, name)

        def patched(*args: Any) -> Any:
            if condition is None or condition(*args):
                _kill(pid())
            return real(*args)

        setattr(owner, name, patched)

    return patch


def _after(owner: Any, name: str) -> Patch:
    def patch() -> None:
        real = getattr(owner, name)

        def patched(*args: Any) -> Any:
            result = real(*args)
            _kill(os.getpid())
            return result

        setattr(owner, name, patched)

    return patch


def _is_starting(_: ServiceFolder, record: ServiceRecord) -> bool:
    return any(each.state == "starting" for each in record.replicas)


START_POINTS = {
    "before the start is published": _before(
        ServiceFolder, "write_record", os.getpid, _is_starting
    ),
    "before the fork": _before(replica, "start", os.getpid),
    "before the child is recorded": _before(ServiceFolder, "write_process", os.getppid),
    "before the child is released": _before(replica, "outlive_parent", os.getppid),
    "before the child executes": _before(replica, "execute", os.getppid),
    "after the start": _after(replica, "start"),
}
STOP_POINTS = {
    "before the signal": _before(replica.ReplicaProcess, "signal", os.getpid),
    "after the signal": _after(replica.ReplicaProcess, "signal"),
    "before the folder of a replica is removed": _before(
        ServiceFolder, "remove_replica", os.getpid
    ),
    "before the service is removed": _before(ServiceFolder, "remove", os.getpid),
}

if __name__ == "__main__":
    {**START_POINTS, **STOP_POINTS}[os.environ["CRASH_POINT"]]()
    sys.exit(daemon.main(sys.argv[1:]))
