"""Base of launchers: keeps track of the starts of a job's tasks, and orders their agents."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from timonel.engines.agent.messages import Hello, StartOrder, StopOrder, decode_event, encode
from timonel.engines.cluster import TaskAssignment, assign
from timonel.engines.coordination import lifecycle as on
from timonel.engines.coordination.elastic import resized
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.spec import JobSpec
from timonel.processes.loop import Channel, Loop

_LOST = TaskExit(agent_lost=True)
_LONGEST_REASON = 500
"""Most characters of a reason, which is in an environment variable with the addresses of all."""


@dataclass(eq=False)
class TaskStart:
    """A start of a task, until the task has exited.

    Attributes:
        hello: Task ID, generation and attempt.
        assignment: Place in the cluster.
        channel: Connection to the agent, once it has the order to start.
        stop: Order to stop, which an agent that connects later gets too.
    """

    hello: Hello
    assignment: TaskAssignment
    channel: Channel | None = None
    stop: StopOrder | None = None


@dataclass(kw_only=True)
class AgentLauncher(abc.ABC):
    """A `TaskLauncher` whose tasks have agents; subclasses start and kill these.

    Attributes:
        spec: Job specification.
        loop: Event loop of the supervisor.
        emit: Takes the events of tasks.
        starts: Current start of each task that has not exited.
    """

    spec: JobSpec
    loop: Loop
    emit: Callable[[on.Event], None]
    starts: dict[str, TaskStart] = field(default_factory=dict)
    _addresses: Mapping[str, str] = field(default_factory=dict)
    _assignments: dict[str, TaskAssignment] = field(default_factory=dict)

    @abc.abstractmethod
    def reserve(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        """Return new addresses of the tasks of a generation; an `OSError` fails its start."""

    @abc.abstractmethod
    def begin(self, start: TaskStart) -> None:
        """Call `connect`, or start an agent that sends the `Hello` to a watched channel."""

    @abc.abstractmethod
    def order(self, start: TaskStart) -> StartOrder:
        """Return the order for the agent."""

    def discard(self, channel: Channel) -> None:
        """Disconnect an agent that has died or must die, with its task."""
        self.disconnect(channel)

    def exited(self, channel: Channel) -> None:
        """Disconnect an agent whose task has exited, unless it is kept for the next start."""
        self.disconnect(channel)

    def start(self, action: on.StartGeneration, reason: str | None) -> None:
        """Start every task with a new address."""
        roles = resized(self.spec.roles, action.sizes)
        names = [f"{role.name}-{index}" for role in roles for index in range(role.replicas)]
        self._assignments = {}
        try:
            self._addresses = self.reserve(names)
        except OSError as error:
            message = f"cannot reserve {len(names)} ports: {error}"
            self.emit(on.StartFailed(action.generation, message))
            return
        self._assignments = assign(roles, self._addresses, action.generation)
        for name in names:
            if reason is not None:
                self._assignments[name]["reason"] = reason[:_LONGEST_REASON]
            self._begin(name)

    def restart(self, action: on.StartTask) -> None:
        """Restart a task at its address."""
        assignment = self._assignments[action.task_id]
        self._assignments[action.task_id] = {**assignment, "attempt": action.attempt}
        self._begin(action.task_id)

    def stop(self, action: on.StopTasks) -> None:
        """Ask tasks to exit."""
        for task_id in action.task_ids:
            start = self.starts.get(task_id)
            if start is None or start.hello.generation != action.generation:
                # The task never started, so report its end now.
                assignment = self._assignments.get(task_id)
                attempt = assignment["attempt"] if assignment else 1
                self.emit(on.TaskExited(task_id, action.generation, _LOST, attempt))
                continue
            attempt = start.hello.attempt
            start.stop = StopOrder(action.generation, attempt, action.grace_s, action.urgent)
            if start.channel is not None:
                start.channel.send(encode(start.stop))

    def kill(self, action: on.KillTasks) -> None:
        """Kill tasks whose agents do not respond."""
        for task_id in action.task_ids:
            start = self.starts.pop(task_id, None)
            if start is not None and start.channel is not None:
                self.discard(start.channel)

    def close(self) -> None:
        """Disconnect all agents, which kill their tasks and exit."""
        for start in self.starts.values():
            if start.channel is not None:
                self.disconnect(start.channel)

    def watch(self, channel: Channel) -> None:
        """Handle the messages of an agent."""
        self.loop.watch_channel(channel, lambda: self._receive(channel))

    def connect(self, start: TaskStart, channel: Channel) -> None:
        """Send the orders of a start to its agent."""
        start.channel = channel
        channel.send(encode(self.order(start)))
        if start.stop is not None:
            channel.send(encode(start.stop))

    def disconnect(self, channel: Channel) -> None:
        """Close a watched channel; its agent kills its task and exits."""
        self.loop.forget(channel)
        channel.close()

    def lose(self, channel: Channel) -> None:
        """Discard an agent, and report the end of its task, if that has not exited."""
        self.discard(channel)
        if (start := self._start_of(channel)) is not None:
            hello = start.hello
            del self.starts[hello.task_id]
            self.emit(on.TaskExited(hello.task_id, hello.generation, _LOST, hello.attempt))

    def _begin(self, task_id: str) -> None:
        assignment = self._assignments[task_id]
        hello = Hello(task_id, assignment["generation"], assignment["attempt"])
        self.starts[task_id] = TaskStart(hello, assignment)
        self.begin(self.starts[task_id])

    def _receive(self, channel: Channel) -> None:
        for event in map(decode_event, channel.receive()):
            if isinstance(event, Hello):
                start = self.starts.get(event.task_id)
                if start is None or start.hello != event:
                    self.disconnect(channel)  # it was killed before it was there
                    return
                self.connect(start, channel)
                continue
            if isinstance(event, on.TaskStarted):
                self.emit(replace(event, address=self._addresses.get(event.task_id)))
                continue
            self.emit(event)
            start = self._start_of(channel)
            if start is not None and isinstance(event, on.TaskExited | on.StartFailed):
                del self.starts[start.hello.task_id]
                self.exited(channel)
        if not channel.is_open and channel.fileno() >= 0:
            self.lose(channel)

    def _start_of(self, channel: Channel) -> TaskStart | None:
        return next((one for one in self.starts.values() if one.channel is channel), None)
