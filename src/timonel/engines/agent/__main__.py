"""Run an agent on an inherited socket: ``python -m timonel.engines.agent DESCRIPTOR``."""

import socket
import sys

from timonel.engines.agent.agent import run_agent

if __name__ == "__main__":
    given = socket.socket(fileno=int(sys.argv[1]))
    given.set_inheritable(False)  # the task must not keep it open
    run_agent(given)
