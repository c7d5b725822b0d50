"""A pod: the agent of one start of a task, with files of its own."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.remote.store import Replica, Store
from timonel.engines.agent.agent import run_agent
from timonel.engines.source import unpack
from timonel.processes.loop import Channel

_SYNC_S = 0.02
_KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH")


@dataclass(frozen=True)
class Pod:
    """Folders of a pod."""

    root: Path

    @property
    def job_dir(self) -> Path:
        return self.root / "job"

    @property
    def task_dir(self) -> Path:
        return self.root / "task"

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process in the pod, with nothing of the submitter's."""
        temporary = self.root / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return {
            **own,
            "PYTHONUNBUFFERED": "1",
            **env,
            "TMPDIR": str(temporary),
            "TIMONEL_JOB_DIR": str(self.job_dir),
        }


class Files:
    """The files that a pod has in common with others: those of the job, and its logs."""

    def __init__(self, store: Store, job_id: str, pod: Pod, source: str | None) -> None:
        pod.root.mkdir(parents=True)
        self._replicas = (
            Replica(store, f"{job_id}/files", pod.job_dir),
            Replica(store, f"{job_id}/logs/{pod.root.name}", pod.logs),
        )
        self.sync()
        assert source is not None
        unpack(source, pod.source)

    def sync(self) -> None:
        for replica in self._replicas:
            replica.sync()


def pod_name(hello: dict[str, Any]) -> str:
    """Return the name of the pod of a start of a task."""
    return "{task_id}-g{generation}-a{attempt}".format(**hello)


def run_pod(
    pod: Pod, store: Store, job_id: str, source: str | None, port: int, hello: dict[str, Any]
) -> None:
    """Run the agent of a task until its coordinator hangs up, or either of them dies."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    files = Files(store, job_id, pod, source)
    sock = socket.create_connection(("127.0.0.1", port))
    agent = os.fork()
    if agent == 0:
        Channel(sock).send(hello)
        run_agent(sock)
    sock.close()
    while os.waitpid(agent, os.WNOHANG)[0] == 0:
        files.sync()
        time.sleep(_SYNC_S)
    files.sync()
