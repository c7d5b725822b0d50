"""Server process: ``python -m timonel.serving.server_process REPORT``, started by its parent.

It stops when stdin is closed, and reports on the descriptor REPORT.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from timonel.processes.run_module import run_program
from timonel.processes.spawn import ProcessCommand, close_inherited, reset_signals
from timonel.serving.process_io import STDIN, STOP_MARGIN_S, read_line, run_reporting
from timonel.serving.server import run
from timonel.serving.settings.server import ServerSettings


def run_forked(connection: socket.socket) -> NoReturn:
    """Run a server in a child of the zygote, with the streams and environment of its parent."""
    code = 1
    try:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
        *streams, last = descriptors
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.setsid()
        close_inherited(keep=(last,))
        reset_signals()
        place = json.loads(read_line())
        os.chdir(place["cwd"])
        command = ProcessCommand(
            __name__, (str(last),), place["env"], place["cwd"], Path(), is_safe_path=True
        )
        code = run_program(command, "timonel server", lambda: main(last))
    finally:
        os._exit(code)


def main(descriptor: int) -> NoReturn:
    """Run the server with the settings from stdin, and end the process."""
    code = _serve(descriptor)
    logging.shutdown()
    # An interpreter would wait for the threads of requests that hang.
    os._exit(code)


def _serve(descriptor: int) -> int:
    orders = json.loads(read_line())
    settings = ServerSettings.model_validate(orders["settings"])
    threading.Thread(target=_follow_parent, args=(settings.drain_s,), daemon=True).start()
    server = partial(run, settings, leash=STDIN, log=orders["log"], owner=orders["owner"])
    return run_reporting(descriptor, server)


def _follow_parent(drain_s: float) -> None:
    """End this process if a load or a request that hangs would let it outlive its parent."""
    poller = select.poll()
    poller.register(STDIN, 0)  # reports only that the other end was closed
    poller.poll()
    time.sleep(drain_s + STOP_MARGIN_S)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
