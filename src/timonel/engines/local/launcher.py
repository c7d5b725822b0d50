"""Start and stop the tasks of a job through their agents."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from timonel.engines.agent.agent import run_agent
from timonel.engines.agent.messages import StopOrder, decode_event, encode, start_order
from timonel.engines.cluster import TaskAssignment, assign
from timonel.engines.coordination.elastic import resized
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import (
    Event,
    KillTasks,
    StartFailed,
    StartGeneration,
    StartTask,
    StopTasks,
    TaskExited,
    TaskStarted,
)
from timonel.engines.environment import TASK_DIR, role_environment, task_environment
from timonel.engines.local.folder import JobFolder
from timonel.engines.local.zygote_client import request_agent
from timonel.engines.spec import JobSpec, RoleSpec
from timonel.processes.loop import Channel, Loop
from timonel.processes.ports import PortReservation
from timonel.processes.tree import kill_all, marked
from timonel.processes.zygote import ForkedChild, ZygoteError


@dataclass
class _Agent:
    """Supervisor's view of a task's agent.

    Attributes:
        pid: PID of the agent, once known.
        is_child: Whether this process forked it; otherwise a zygote did.
        request: Unanswered request to a zygote.
        generation: Generation of the running task; None once it has ended.
        attempt: Attempt of that task.
    """

    task_id: str
    channel: Channel
    pid: int | None = None
    is_child: bool = False
    request: ForkedChild | None = None
    generation: int | None = None
    attempt: int = 1
    address: str | None = None


@dataclass
class LocalLauncher:
    """Carries out a coordinator's actions with one agent per task, and emits events.

    Agents outlive generations; a dead agent is replaced at the next start.
    """

    spec: JobSpec
    folder: JobFolder
    loop: Loop
    token: str
    emit: Callable[[Event], None]
    _agents: dict[str, _Agent] = field(default_factory=dict)
    _ports: PortReservation | None = None
    _addresses: dict[str, str] = field(default_factory=dict)
    _assignments: dict[str, TaskAssignment] = field(default_factory=dict)

    def start(self, action: StartGeneration, reason: str | None = None) -> None:
        """Start every task with new addresses.

        Args:
            action: Generation and sizes.
            reason: Why the previous generation ended, passed on to tasks.
        """
        generation = action.generation
        roles = resized(self.spec.roles, action.sizes)
        names = [task_id for role in roles for task_id in _tasks_of(role)]
        self._assignments = {}
        try:
            self._reserve(names)
        except OSError as error:
            self.emit(StartFailed(generation, f"cannot reserve {len(names)} ports: {error}"))
            return
        self._assignments = assign(roles, self._addresses, generation)
        if reason is not None:
            for assignment in self._assignments.values():
                assignment["reason"] = reason
        self._disconnect_all(set(self._agents) - set(names))
        for task_id in names:
            self._start_task(task_id, generation)

    def restart(self, action: StartTask) -> None:
        """Restart a task at its address."""
        assignment = self._assignments[action.task_id]
        self._assignments[action.task_id] = {**assignment, "attempt": action.attempt}
        self._start_task(action.task_id, action.generation)

    def stop(self, action: StopTasks) -> None:
        """Ask tasks to exit."""
        for task_id in action.task_ids:
            agent = self._agents.get(task_id)
            if agent is None or agent.generation != action.generation:
                # The task never started, so report its end now.
                assignment = self._assignments.get(task_id)
                attempt = assignment["attempt"] if assignment else 1
                task_exit = TaskExit(agent_lost=True)
                self.emit(TaskExited(task_id, action.generation, task_exit, attempt))
            elif agent.request is not None:
                # Its zygote may import for long; an agent forked later exits at once.
                self._drop(agent)
            else:
                order = StopOrder(action.generation, agent.attempt, action.grace_s, action.urgent)
                agent.channel.send(encode(order))

    def kill(self, action: KillTasks) -> None:
        """Kill tasks whose agents do not respond."""
        for task_id in action.task_ids:
            agent = self._agents.get(task_id)
            if agent is not None:
                agent.generation = None
                self._drop(agent)

    def close(self) -> None:
        """Disconnect all agents, which then exit, and release the ports."""
        self._disconnect_all(set(self._agents))
        self._release()

    def _disconnect_all(self, task_ids: Collection[str]) -> None:
        for task_id in task_ids:
            self._disconnect(self._agents.pop(task_id))

    def _reserve(self, task_ids: Sequence[str]) -> None:
        # New ports first, so that they differ from those of the previous generation.
        ports = PortReservation(len(task_ids))
        self._release()
        self._ports = ports
        self._addresses = dict(zip(task_ids, ports.addresses, strict=True))

    def _release(self) -> None:
        if self._ports is not None:
            self._ports.release()
            self._ports = None

    def _start_task(self, task_id: str, generation: int) -> None:
        """Send a task's start order to its agent, created if needed."""
        assignment = self._assignments[task_id]
        role = next(r for r in self.spec.roles if r.name == assignment["task"]["type"])
        base = role_environment(self.spec, role, self.folder.root)
        agent = self._agents.get(task_id) or self._add_agent(task_id, base)
        agent.generation = generation
        agent.attempt = assignment["attempt"]
        agent.address = self._addresses[task_id]
        task_dir = self.folder.task_dir(task_id)
        order = start_order(
            self.spec,
            assignment,
            env=task_environment(base, task_dir, assignment, self.token),
            cwd=str(self.folder.working_dir(self.spec)),
            task_dir=task_dir,
            log=self.folder.task_log(task_id),
        )
        agent.channel.send(encode(order))

    def _add_agent(self, task_id: str, env: dict[str, str]) -> _Agent:
        own_end, agent_end = socket.socketpair()
        agent = _Agent(task_id, Channel(own_end))
        self._agents[task_id] = agent
        self.loop.watch_channel(agent.channel, lambda: self._on_message(agent))
        note = None
        if self.spec.preload:
            try:
                agent.request = request_agent(self.spec.preload, env, agent_end, self.token)
            except ZygoteError as error:
                note = str(error)
        if agent.request is None:
            self._fork(agent, agent_end, note)
        else:
            self.loop.watch(agent.request.fileno(), lambda: self._on_answer(agent, agent_end))
        return agent

    def _on_answer(self, agent: _Agent, agent_end: socket.socket) -> None:
        """Handle a zygote's answer: the forked agent, or a refusal."""
        request = agent.request
        if request is None:
            return
        note = None
        try:
            agent.pid = request.wait_for_pid(0)
            if agent.pid is None:
                return
        except ZygoteError as error:
            note = str(error)
        self.loop.forget(request.fileno())
        request.close()
        agent.request = None
        if note is None:
            agent_end.close()
        else:
            self._fork(agent, agent_end, note)

    def _fork(self, agent: _Agent, agent_end: socket.socket, note: str | None) -> None:
        if note is not None:
            note = f"started without a zygote: {note}"
        pid = os.fork()
        if pid == 0:
            run_agent(agent_end, note=note)
        agent_end.close()
        agent.pid = pid
        agent.is_child = True

    def _on_message(self, agent: _Agent) -> None:
        for message in agent.channel.receive():
            event = decode_event(message)
            if isinstance(event, TaskExited | StartFailed):
                agent.generation = None
            elif isinstance(event, TaskStarted):
                event = replace(event, address=agent.address)
            self.emit(event)
        if not agent.channel.is_open and self._agents.get(agent.task_id) is agent:
            self._drop(agent)

    def _drop(self, agent: _Agent) -> None:
        """Drop an agent, and kill the remaining processes of its task."""
        if self._agents.get(agent.task_id) is not agent:
            return
        del self._agents[agent.task_id]
        self._disconnect(agent)
        if agent.pid is not None:
            self._kill(agent)
        if agent.generation is not None:
            task_exit = TaskExit(agent_lost=True)
            self.emit(TaskExited(agent.task_id, agent.generation, task_exit, agent.attempt))

    def _kill(self, agent: _Agent) -> None:
        inside = f"{TASK_DIR}={self.folder.task_dir(agent.task_id)}"
        if agent.is_child and agent.pid is not None:
            # Not reaped yet, so the PID is not reused.
            os.kill(agent.pid, signal.SIGKILL)
        kill_all(lambda: marked(self.token, inside=inside))

    def _disconnect(self, agent: _Agent) -> None:
        if agent.request is not None:
            self.loop.forget(agent.request.fileno())
            agent.request.close()
            agent.request = None
        self.loop.forget(agent.channel)
        agent.channel.close()


def _tasks_of(role: RoleSpec) -> list[str]:
    return [f"{role.name}-{index}" for index in range(role.replicas)]
