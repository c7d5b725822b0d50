"""Start and stop the tasks of a job through their agents."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from timonel.engines.agent.agent import run_agent
from timonel.engines.agent.launcher import AgentLauncher, TaskStart
from timonel.engines.agent.messages import StartOrder, start_order
from timonel.engines.coordination.lifecycle import StopTasks
from timonel.engines.environment import role_environment, task_environment
from timonel.engines.local.folder import JobFolder
from timonel.processes.loop import Channel
from timonel.processes.ports import PortReservation
from timonel.processes.tree import MARKER, TASK_DIR, kill_all, marked
from timonel.processes.zygote import ForkedChild, ZygoteError
from timonel.processes.zygote_client import request_child


@dataclass
class _Agent:
    """Supervisor's view of a task's agent.

    Attributes:
        pid: PID of the agent, once known.
        is_child: Whether this process forked it; otherwise a zygote did.
        request: Unanswered request to a zygote.
    """

    task_id: str
    channel: Channel
    pid: int | None = None
    is_child: bool = False
    request: ForkedChild | None = None


@dataclass(kw_only=True)
class LocalLauncher(AgentLauncher):
    """Carries out a coordinator's actions with one agent per task.

    Agents outlive generations; a dead agent is replaced at the next start.
    """

    folder: JobFolder
    token: str
    _agents: dict[str, _Agent] = field(default_factory=dict)
    _ports: PortReservation | None = None

    def reserve(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        """Return new addresses; end the agents of tasks that are not in the generation."""
        # New ports first, so that they differ from those of the previous generation.
        ports = PortReservation(len(task_ids))
        if self._ports is not None:
            self._ports.release()
        self._ports = ports
        for task_id in set(self._agents) - set(task_ids):
            self._forget(self._agents[task_id])
        return dict(zip(task_ids, ports.addresses, strict=True))

    def begin(self, start: TaskStart) -> None:
        """Give the task's agent the order, or start an agent."""
        agent = self._agents.get(start.hello.task_id) or self._add_agent(start)
        self.connect(start, agent.channel)

    def order(self, start: TaskStart) -> StartOrder:
        """Return the order for the agent."""
        task_id, assignment = start.hello.task_id, start.assignment
        task_dir = self.folder.task_dir(task_id)
        return start_order(
            self.spec,
            assignment,
            env=task_environment(self._base(start), task_dir, assignment, self.token),
            cwd=str(self.folder.working_dir(self.spec)),
            task_dir=task_dir,
            log=self.folder.task_log(task_id),
        )

    def stop(self, action: StopTasks) -> None:
        """Ask tasks to exit."""
        super().stop(action)
        for task_id in action.task_ids:
            start, agent = self.starts.get(task_id), self._agents.get(task_id)
            if agent and agent.request is not None and start and start.stop is not None:
                # Its zygote may import for long; an agent forked later exits at once.
                self.lose(agent.channel)

    def discard(self, channel: Channel) -> None:
        """Disconnect an agent, and kill the remaining processes of its task."""
        agent = next(one for one in self._agents.values() if one.channel is channel)
        self._forget(agent)
        if agent.pid is None:
            return
        if agent.is_child:
            # Not reaped yet, so the PID is not reused.
            os.kill(agent.pid, signal.SIGKILL)
        inside = f"{TASK_DIR}={self.folder.task_dir(agent.task_id)}"
        kill_all(lambda: marked(self.token, inside=inside))

    def exited(self, channel: Channel) -> None:
        """Keep the agent."""

    def close(self) -> None:
        """Disconnect all agents, which then exit, and release the ports."""
        for agent in list(self._agents.values()):
            self._forget(agent)
        if self._ports is not None:
            self._ports.release()

    def _base(self, start: TaskStart) -> dict[str, str]:
        role = next(r for r in self.spec.roles if r.name == start.assignment["task"]["type"])
        return role_environment(self.spec, role, self.folder.root)

    def _add_agent(self, start: TaskStart) -> _Agent:
        own_end, agent_end = socket.socketpair()
        agent = _Agent(start.hello.task_id, Channel(own_end))
        self._agents[agent.task_id] = agent
        self.watch(agent.channel)
        note = None
        if self.spec.preload:
            try:
                agent.request = request_child(
                    self.spec.preload,
                    self._base(start),
                    agent_end,
                    "timonel.engines.agent.agent:run_forked_agent",
                    {MARKER: self.token},
                )
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

    def _forget(self, agent: _Agent) -> None:
        del self._agents[agent.task_id]
        if agent.request is not None:
            self.loop.forget(agent.request.fileno())
            agent.request.close()
            agent.request = None
        self.disconnect(agent.channel)
