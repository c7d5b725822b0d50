"""The coordinator of one job: the supervisor's loop over pods that it does not see."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.engines.remote.pod import Files, Pod
from tests.engines.remote.store import Store
from timonel.engines import CommandSpec, JobSpec, JobState, JobStatus
from timonel.engines.agent.messages import StopOrder, decode_event, encode, start_order
from timonel.engines.cluster import TaskAssignment, assign
from timonel.engines.cluster import encode as encode_assignment
from timonel.engines.coordination.elastic import resized
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import (
    CoordinatorState,
    Event,
    KillTasks,
    StartGeneration,
    StartTask,
    StopRequested,
    StopTasks,
    TaskExited,
    TaskStarted,
)
from timonel.engines.coordination.supervision import supervise
from timonel.processes.loop import Channel, Loop
from timonel.processes.ports import PortReservation

_SYNC_S = 0.05
_LONGEST_S = 60.0


@dataclass
class _Start:
    """One start of a task, which has a pod of its own."""

    task_id: str
    assignment: TaskAssignment
    channel: Channel | None = None
    has_exited: bool = False
    stop: StopOrder | None = None

    @property
    def generation(self) -> int:
        return self.assignment["generation"]

    @property
    def attempt(self) -> int:
        return self.assignment["attempt"]


@dataclass
class PodLauncher:
    """Starts a pod for each start of a task; the pod's agent connects to this process."""

    spec: JobSpec
    pods: Callable[[str], Pod]
    node: Callable[..., None]
    loop: Loop
    emit: Callable[[Event], None]
    _starts: dict[str, _Start] = field(default_factory=dict)
    _assignments: dict[str, TaskAssignment] = field(default_factory=dict)
    _current: dict[str, str] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)
    _ports: PortReservation | None = None

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.loop.watch(self._listener.fileno(), self._accept)

    def start(self, action: StartGeneration, reason: str | None) -> None:
        roles = resized(self.spec.roles, action.sizes)
        names = [f"{role.name}-{index}" for role in roles for index in range(role.replicas)]
        ports, before = PortReservation(len(names)), self._ports
        self._ports = ports
        if before is not None:
            before.release()
        self._addresses = dict(zip(names, ports.addresses, strict=True))
        self._assignments = assign(roles, self._addresses, action.generation)
        for name in names:
            if reason is not None:
                self._assignments[name]["reason"] = reason
            self._begin(name)

    def restart(self, action: StartTask) -> None:
        assignment = self._assignments[action.task_id]
        self._assignments[action.task_id] = {**assignment, "attempt": action.attempt}
        self._begin(action.task_id)

    def stop(self, action: StopTasks) -> None:
        for task_id in action.task_ids:
            start = self._starts.get(self._current.get(task_id, ""))
            if start is None or start.generation != action.generation or start.has_exited:
                attempt = self._assignments[task_id]["attempt"]
                lost = TaskExit(agent_lost=True)
                self.emit(TaskExited(task_id, action.generation, lost, attempt))
                continue
            start.stop = StopOrder(action.generation, start.attempt, action.grace_s, action.urgent)
            if start.channel is not None:
                start.channel.send(encode(start.stop))

    def kill(self, action: KillTasks) -> None:
        for task_id in action.task_ids:
            start = self._starts.get(self._current.get(task_id, ""))
            if start is not None:
                start.has_exited = True
                self._hang_up(start)

    def close(self) -> None:
        for start in self._starts.values():
            if start.channel is not None:
                self.loop.forget(start.channel)
                start.channel.close()
        self.loop.forget(self._listener.fileno())
        self._listener.close()

    def _begin(self, task_id: str) -> None:
        start = _Start(task_id, self._assignments[task_id])
        name = f"{task_id}-g{start.generation}-a{start.attempt}"
        self._starts[name] = start
        self._current[task_id] = name
        port = self._listener.getsockname()[1]
        self.node("pod", job_id=self.spec.job_id, name=name, source=self.spec.source, port=port)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        channel = Channel(sock)
        self.loop.watch_channel(channel, lambda: self._receive(channel))

    def _receive(self, channel: Channel) -> None:
        for message in channel.receive():
            if "pod" in message:
                self._connected(message["pod"], channel)
                continue
            start = next(one for one in self._starts.values() if one.channel is channel)
            event = decode_event(message)
            if isinstance(event, TaskExited):
                start.has_exited = True
                self._hang_up(start)
            if isinstance(event, TaskStarted):
                event = replace(event, address=self._addresses[start.task_id])
            self.emit(event)
        if not channel.is_open:
            for start in self._starts.values():
                if start.channel is channel:
                    self._lose(start)

    def _connected(self, name: str, channel: Channel) -> None:
        start, pod = self._starts[name], self.pods(name)
        start.channel = channel
        if start.has_exited:
            self._hang_up(start)  # it was killed before it was there
            return
        assignment = start.assignment
        role = next(r for r in self.spec.roles if r.name == assignment["task"]["type"])
        env = pod.environment({**self.spec.env, **role.env})
        env["TIMONEL_CLUSTER"] = encode_assignment(assignment)
        env["TIMONEL_TASK_DIR"] = str(pod.task_dir)
        order = start_order(
            self.spec,
            assignment,
            env=env,
            cwd=str(pod.source),
            task_dir=pod.task_dir,
            log=pod.logs / "output.log",
        )
        channel.send(encode(order))
        if start.stop is not None:
            channel.send(encode(start.stop))

    def _hang_up(self, start: _Start) -> None:
        if start.channel is not None:
            self.loop.forget(start.channel)
            start.channel.close()
            start.channel = None

    def _lose(self, start: _Start) -> None:
        self._hang_up(start)
        if not start.has_exited:
            start.has_exited = True
            lost = TaskExit(agent_lost=True)
            self.emit(TaskExited(start.task_id, start.generation, lost, start.attempt))


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
        self._launcher = PodLauncher(spec, pods, node, self._loop, self._events.append)

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
