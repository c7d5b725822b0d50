"""A cluster of one node: ``python -m tests.engines.remote.node ROOT``.

Prints its port. It owns all processes of its jobs and their files; clients only exchange JSON with
it, one request on each connection.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.remote.coordinator import Coordinator, read_status
from tests.engines.remote.pod import Pod, pod_name, run_pod
from tests.engines.remote.store import Store
from timonel.engines import JobSpec, JobStatus
from timonel.processes.tree import adopt_orphans

_CHUNK_BYTES = 1 << 16


class Node:
    """Serves requests, and forks coordinators and pods."""

    def __init__(self, root: Path) -> None:
        self._store = Store(root / "store")
        self._pods = root / "pods"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._children: dict[int, str] = {}
        self._coordinators: dict[str, int] = {}
        self.port = self._listener.getsockname()[1]

    def serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                request = json.loads(_received(connection))
                self._reap()
                answer = getattr(self, f"do_{request.pop('do')}")(**request)
                connection.sendall(json.dumps(answer).encode())
                connection.shutdown(socket.SHUT_WR)  # forked processes have a copy of it

    def do_submit(self, spec: dict[str, Any]) -> str | None:
        job = JobSpec.model_validate(spec)
        if read_status(self._store, job.job_id) is not None:
            return "exists"
        status = JobStatus.of(job, time.time())
        self._store.put(f"{job.job_id}/status", status.model_dump_json().encode())
        self._store.put(f"{job.job_id}/spec", job.model_dump_json().encode())

        def pods(name: str) -> Pod:
            return Pod(self._pods / job.job_id / name)

        pid = self._fork(
            "coordinator", lambda: Coordinator(job, self._store, pods, self._ask).run()
        )
        self._coordinators[job.job_id] = pid
        return None

    def do_pod(self, job_id: str, hello: dict[str, Any], source: str, port: int) -> None:
        name = pod_name(hello)
        pod = Pod(self._pods / job_id / name)
        self._fork(name, lambda: run_pod(pod, self._store, job_id, source, port, hello))

    def do_status(self, job_id: str) -> dict[str, Any] | None:
        return read_status(self._store, job_id)

    def do_jobs(self) -> list[str]:
        return [name.split("/")[0] for name in self._store.names("") if name.endswith("/status")]

    def do_spec(self, job_id: str) -> dict[str, Any]:
        return json.loads(self._store.get(f"{job_id}/spec") or b"")

    def do_cancel(self, job_id: str) -> None:
        if self._coordinators[job_id] in self._children:
            os.kill(self._coordinators[job_id], signal.SIGTERM)

    def do_log(self, job_id: str, task_id: str) -> str:
        """Return the output of all starts of a task."""
        names = [
            name
            for name in self._store.names(f"{job_id}/logs")
            if name.split("/")[2].startswith(f"{task_id}-g")
        ]
        return b"".join(self._store.get(name) or b"" for name in names).decode()

    def do_read(self, job_id: str, name: str) -> str | None:
        content = self._store.get(f"{job_id}/files/{name}")
        return None if content is None else content.decode()

    def do_write(self, job_id: str, name: str, text: str) -> None:
        self._store.put(f"{job_id}/files/{name}", text.encode())

    def do_processes(self) -> list[str]:
        return sorted(self._children.values())

    def do_temporary(self) -> list[str]:
        return [str(path) for path in self._pods.glob("*/*/tmp/*")]

    def _ask(self, do: str, /, **request: Any) -> None:
        ask(self.port, do, **request)

    def _fork(self, name: str, run: Callable[[], None]) -> int:
        """Run a function in a child, which unblocks SIGTERM when it can take it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._listener.close()
                run()
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._children[pid] = name
        return pid

    def _reap(self) -> None:
        while self._children:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.pop(pid, None)


def ask(port: int, do: str, /, **request: Any) -> Any:
    """Send a request to a node and return its answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(json.dumps({"do": do, **request}).encode())
        connection.shutdown(socket.SHUT_WR)
        return json.loads(_received(connection))


def _received(connection: socket.socket) -> bytes:
    received = b""
    while chunk := connection.recv(_CHUNK_BYTES):
        received += chunk
    return received


if __name__ == "__main__":
    adopt_orphans()
    node = Node(Path(sys.argv[1]))
    print(node.port, flush=True)
    node.serve()
