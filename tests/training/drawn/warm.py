"""Agents whose tasks are forks of a process that has imported TensorFlow."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys

from timonel.engines.agent.messages import StartOrder, decode_event, encode
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import TaskExited
from timonel.processes.loop import Channel
from timonel.processes.zygote import single_threaded_environment
from timonel.training.entries import LEGACY_KERAS

_PRELOAD = ("tensorflow", "timonel.training.worker.bootstrap", "timonel.training.worker.managed")


class WarmAgent:
    """An agent that imports once, and runs tasks one after the other.

    A job's own agents would cost a supervisor for each job, and an import for each agent.

    Args:
        keras: The Keras to import.
    """

    def __init__(self, keras: str) -> None:
        own_end, agent_end = socket.socketpair()
        self.environ = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        if keras == "tf_keras":
            self.environ[LEGACY_KERAS] = "1"
        number = str(agent_end.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "timonel.engines.agent", number, keras, *_PRELOAD],
            stdin=subprocess.DEVNULL,
            pass_fds=[agent_end.fileno()],
            env=single_threaded_environment(self.environ),
        )
        agent_end.close()
        self._channel = Channel(own_end)

    def run(self, order: StartOrder) -> TaskExit:
        """Run a task to its end."""
        self._channel.send(encode(order))
        while self._channel.is_open:
            select.select([self._channel], [], [])
            for event in map(decode_event, self._channel.receive()):
                if isinstance(event, TaskExited):
                    return event.exit
        return TaskExit(agent_lost=True)

    def close(self) -> None:
        """End the agent, and its task."""
        self._channel.close()
        self._process.wait()


class WarmAgents:
    """An agent for each Keras that is used."""

    def __init__(self) -> None:
        self._agents: dict[str, WarmAgent] = {}

    def of(self, keras: str) -> WarmAgent:
        """Return the agent for a Keras, started on first use."""
        if keras not in self._agents:
            self._agents[keras] = WarmAgent(keras)
        return self._agents[keras]

    def close(self) -> None:
        """End all agents."""
        for agent in self._agents.values():
            agent.close()
