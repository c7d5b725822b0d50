"""Run an agent on an inherited socket: ``python -m timonel.engines.agent DESCRIPTOR``."""

import socket
import sys

from timonel.engines.agent.agent import run_agent

if __name__ == "__main__":
    run_agent(socket.socket(fileno=int(sys.argv[1])))
