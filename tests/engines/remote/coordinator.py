"""The coordinator of one job: the supervisor's loop over pods that it does not see."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.engines.remote.pod import Files, Pod, pod_name
from tests.engines.remote.store import Store
from timonel.engines import CommandSpec, JobSpec, JobState, JobStatus
from timonel.engines.agent.launcher import AgentLauncher, TaskStart
from timonel.engines.agent.messages import StartOrder, encode, start_order
from timonel.engines.cluster import encode as encode_assignment
from timonel.engines.coordination.lifecycle import CoordinatorState, Event, StopRequested
from timonel.engines.coordination.supervision import supervise
from timonel.engines.environment import CLUSTER, TASK_DIR
from timonel.processes.loop import Channel, Loop
from timonel.processes.ports import PortReservation

_SYNC_S = 0.05
_LONGEST_S = 60.0


@dataclass(kw_only=True)
class PodLauncher(AgentLauncher):
    """Starts a pod for each start of a task; the pod's agent connects to this process."""

    pods: Callable[[str], Pod]
    node: Callable[..., None]
    _ports: PortReservation | None = None

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.loop.watch(self._listener.fileno(), self._accept)

    def reserve(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        ports = PortReservation(len(task_ids))
        if self._ports is not None:
            self._ports.release()
        self._ports = ports
        return dict(zip(task_ids, ports.addresses, strict=True))

    def begin(self, start: TaskStart) -> None:
        self.node(
            "pod",
            job_id=self.spec.job_id,
            hello=encode(start.hello),
            source=self.spec.source,
            port=self._listener.getsockname()[1],
        )

    def order(self, start: TaskStart) -> StartOrder:
        pod, assignment = self.pods(pod_name(encode(start.hello))), start.assignment
        role = next(r for r in self.spec.roles if r.name == assignment["task"]["type"])
        base = pod.environment({**self.spec.env, **role.env})
        return start_order(
            self.spec,
            assignment,
            env={**base, CLUSTER: encode_assignment(assignment), TASK_DIR: str(pod.task_dir)},
            cwd=str(pod.source),
            task_dir=pod.task_dir,
            log=pod.logs / "output.log",
        )

    def close(self) -> None:
        super().close()
        self.loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        self.watch(Channel(self._listener.accept()[0]))


class Coordinator:
    """Runs a job to its end, and its commands in a pod of their own."""

    def __init__(self, spec: JobSpec, store: Store, pods: Callable[[str], Pod], node: Any) -> None:
        self._spec = spec
        self._store = store
        self._loop = Loop((signal.SIGCHLD, signal.SIGTERM))
        self._events: deque[Event] = deque()
        self._pod = pods("coordinator")
        self._files = Files(store, spec.job_id, self._pod, spec.source)
        self._pod.task_dir.mkdir()
        self._launcher = PodLauncher(
            spec=spec, pods=pods, node=node, loop=self._loop, emit=self._events.append
        )

    def run(self) -> None:
        # The loop takes it from here on.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        commands = [self._run(command) for command in self._spec.sidecars]
        status = JobStatus.model_validate_json(
            self._store.get(f"{self._spec.job_id}/status") or b""
        )
        outcome = supervise(
            CoordinatorState(self._spec, status),
            self._launcher,
            self._events,
            wait=self._wait,
            publish=self._publish,
            now=time.time,
        )
        self._publish(outcome.model_copy(update={"state": JobState.STOPPING, "ended_at": None}))
        self._launcher.close()
        if self._spec.epilogue is not None:
            self._wait_for(
                [self._run(self._spec.epilogue, TIMONEL_JOB_OUTCOME=outcome.model_dump_json())]
            )
        self._files.sync()
        self._publish(outcome.model_copy(update={"ended_at": time.time()}))
        self._wait_for(commands)
        self._files.sync()

    def _run(self, command: CommandSpec, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", command.module, *command.args],
            cwd=self._pod.source,
            env={
                **self._pod.environment({**self._spec.env, **env}),
                "TIMONEL_TASK_DIR": str(self._pod.task_dir),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _wait_for(self, commands: list[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + _LONGEST_S
        while any(command.poll() is None for command in commands) and time.monotonic() < deadline:
            self._files.sync()
            time.sleep(_SYNC_S)
        for command in commands:
            command.kill()

    def _wait(self, timeout_s: float | None) -> None:
        self._files.sync()
        timeout_s = _SYNC_S if self._spec.sidecars else timeout_s
        if signal.SIGTERM in self._loop.wait(timeout_s):
            self._events.append(StopRequested())

    def _publish(self, status: JobStatus) -> None:
        self._store.put(f"{self._spec.job_id}/status", status.model_dump_json().encode())


def read_status(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the status of a job as JSON; None if there is no such job."""
    content = store.get(f"{job_id}/status")
    return None if content is None else json.loads(content)
