"""Run an agent on an inherited socket: ``python -m timonel.engines.agent DESCRIPTOR [MODULE...]``.

With modules, it imports them first, and then forks tasks that share them.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

from timonel.engines.agent.agent import run_agent
from timonel.processes.run_module import run_module
from timonel.processes.zygote import import_environment, import_modules, preload


def main(number: str, modules: list[str]) -> NoReturn:
    """Run the agent."""
    given = socket.socket(fileno=int(number))
    given.set_inheritable(False)  # the task must not keep it open
    if not modules:
        run_agent(given)
    if not sys.flags.safe_path:
        sys.path.pop(0)  # this process's folder; each task inserts its own
    # Imports may set variables.
    imported = import_environment(os.environ)
    failure = preload(lambda: import_modules(modules))
    run = None if failure else run_module
    run_agent(given, run=run, note=failure, imported=imported)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
