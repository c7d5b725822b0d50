"""A task's agent by itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TypeVar

import pytest

from tests.contracts.engines import TASK_MODULE
from tests.waiting import until
from timonel.engines.agent.messages import AgentEvent, StartOrder, decode_event, encode
from timonel.engines.coordination.lifecycle import TaskExited, TaskReady, TaskStarted
from timonel.processes.loop import Channel

E = TypeVar("E", TaskStarted, TaskReady, TaskExited)

AGENT = textwrap.dedent(
    """
    import socket, sys
    from pathlib import Path
    from timonel.engines.agent import agent
    from timonel.processes.memory import OomWatch

    class Watch(OomWatch):
        def __init__(self):
            super().__init__((Path("counter"),))

        def sample(self):
            super().sample()
            with open("samples", "a") as file:
                file.write(".")

    agent.OomWatch = Watch
    agent.SAMPLE_INTERVAL_S = 0.01
    agent.run_agent(socket.socket(fileno=int(sys.argv[1])))
    """
)


def order(folder: Path) -> StartOrder:
    """Return the order to start a task that waits."""
    return StartOrder(
        task_id="worker-0",
        generation=1,
        attempt=1,
        module=TASK_MODULE,
        args=("ready", "wait"),
        env={**os.environ, "TIMONEL_TASK_DIR": str(folder)},
        cwd=str(folder),
        log=folder / "log",
        task_dir=folder,
        umask=0o022,
    )


@pytest.mark.process
def test_an_old_kill_for_want_of_memory_explains_no_later_one(tmp_path: Path) -> None:
    counter, samples = tmp_path / "counter", tmp_path / "samples"
    counter.write_text("oom_kill 0\n")
    own_end, agent_end = socket.socketpair()
    command = [sys.executable, "-c", AGENT, str(agent_end.fileno())]
    events: list[AgentEvent] = []

    def said(kind: type[E]) -> E | None:
        events.extend(map(decode_event, channel.receive()))
        return next((event for event in events if isinstance(event, kind)), None)

    with subprocess.Popen(command, cwd=tmp_path, pass_fds=(agent_end.fileno(),)), own_end:
        agent_end.close()
        channel = Channel(own_end)
        channel.send(encode(order(tmp_path)))
        until(lambda: said(TaskReady))
        started = said(TaskStarted)
        assert started is not None
        counter.write_text("oom_kill 1\n")
        # The first of two further samples may have begun before the counter grew.
        taken = samples.stat().st_size
        until(lambda: samples.stat().st_size >= taken + 2, 30)
        os.kill(started.pid, signal.SIGKILL)
        until(lambda: said(TaskExited))
        exited = said(TaskExited)
    assert exited is not None
    assert (exited.exit.signal, exited.exit.oom_killed) == (signal.SIGKILL, False)
