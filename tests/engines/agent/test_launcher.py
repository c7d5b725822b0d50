from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from timonel.engines import JobSpec, RoleSpec
from timonel.engines.agent.launcher import AgentLauncher, TaskStart
from timonel.engines.agent.messages import (
    Hello,
    StartOrder,
    StopOrder,
    decode_order,
    encode,
    start_order,
)
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import (
    Event,
    KillTasks,
    StartFailed,
    StartGeneration,
    StopTasks,
    TaskExited,
    TaskStarted,
)
from timonel.processes.loop import Channel, Loop

SPEC = JobSpec(job_id="job", module="m", roles=(RoleSpec(name="worker", replicas=1),))
LOST = TaskExited("worker-0", 1, TaskExit(agent_lost=True), 1)


@dataclass(kw_only=True)
class Launcher(AgentLauncher):
    """Its agents are the tests, which connect when they like."""

    full: bool = False

    def reserve(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        if self.full:
            raise OSError("no ports")
        return dict.fromkeys(task_ids, "127.0.0.1:7")

    def begin(self, start: TaskStart) -> None:
        """Wait for the agent."""

    def order(self, start: TaskStart) -> StartOrder:
        task = Path("task")
        return start_order(
            self.spec, start.assignment, env={}, cwd=".", task_dir=task, log=task / "log"
        )


@dataclass
class Agent:
    launcher: Launcher
    channel: Channel
    events: list[Event]

    @classmethod
    def connected(cls, launcher: Launcher, events: list[Event]) -> Agent:
        ours, theirs = socket.socketpair()
        launcher.watch(Channel(ours))
        return cls(launcher, Channel(theirs), events)

    def send(self, *events: Hello | TaskStarted | TaskExited) -> None:
        for event in events:
            self.channel.send(encode(event))
        self.launcher.loop.wait(0)

    def orders(self) -> list[type]:
        return [type(decode_order(message)) for message in self.channel.receive()]


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def launcher(events: list[Event]) -> Iterator[Launcher]:
    loop = Loop(())
    yield Launcher(spec=SPEC, loop=loop, emit=events.append)
    loop.close()


@pytest.fixture
def agent(launcher: Launcher, events: list[Event]) -> Iterator[Agent]:
    agent = Agent.connected(launcher, events)
    yield agent
    agent.channel.close()
    launcher.loop.wait(0)
    launcher.close()


def test_an_agent_that_connects_late_gets_all_orders(
    launcher: Launcher, agent: Agent, events: list[Event]
) -> None:
    launcher.start(StartGeneration(1, {"worker": 1}), "why")
    launcher.stop(StopTasks(1, ("worker-0",), grace_s=1))
    agent.send(Hello("worker-0", 1, 1), TaskStarted("worker-0", 1, pid=3))
    assert agent.orders() == [StartOrder, StopOrder]
    assert events == [TaskStarted("worker-0", 1, pid=3, address="127.0.0.1:7")]
    exited = TaskExited("worker-0", 1, TaskExit(exit_code=0))
    agent.send(exited)
    assert agent.orders() == []
    assert not agent.channel.is_open
    assert events[1:] == [exited]


@pytest.mark.parametrize("hello", [Hello("worker-0", 1, 1), Hello("worker-0", 2, 1)])
def test_an_agent_of_a_killed_or_another_start_is_turned_away(
    launcher: Launcher, agent: Agent, hello: Hello, events: list[Event]
) -> None:
    launcher.start(StartGeneration(1, {"worker": 1}), None)
    if hello.generation == 1:
        launcher.kill(KillTasks(1, ("worker-0",)))
    agent.send(hello)
    assert agent.orders() == []
    assert not agent.channel.is_open
    assert events == []


def test_a_lost_agent_is_the_end_of_its_task(
    launcher: Launcher, agent: Agent, events: list[Event]
) -> None:
    launcher.start(StartGeneration(1, {"worker": 1}), None)
    agent.send(Hello("worker-0", 1, 1))
    agent.channel.close()
    launcher.loop.wait(0)
    assert events == [LOST]
    launcher.stop(StopTasks(1, ("worker-0",), grace_s=1))
    assert events == [LOST, LOST]


def test_without_addresses_a_generation_does_not_start(
    launcher: Launcher, events: list[Event]
) -> None:
    launcher.full = True
    launcher.start(StartGeneration(1, {"worker": 1}), None)
    assert events == [StartFailed(1, "cannot reserve 1 ports: no ports")]
    launcher.stop(StopTasks(1, ("worker-0",), grace_s=1))
    assert events[1:] == [LOST]
