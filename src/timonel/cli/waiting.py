"""What ``timonel serve`` is while its server serves: ``python -m timonel.cli.waiting``.

Starting a server takes specifications, tables and styles, 40 MiB of them; waiting for its end
takes none. What is imported cannot be got rid of, so the command replaces itself with this program,
in the same process: who waits for it, its terminal, its child and its end of the child's leash
stay what they were.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from timonel.cli import process
from timonel.cli.watch import Watch
from timonel.errors import Interrupted
from timonel.serving.caller import Caller
from timonel.serving.outlasting import Child, outlast

if TYPE_CHECKING:
    from timonel.serving import Server


@dataclass(frozen=True)
class Orders:
    """What the program needs to know.

    Args:
        pid: The server.
        rest_url: Where it is asked.
        models: Which models' versions to tell of.
        caller: Who asks, as the fields of a `Caller`.
    """

    pid: int
    rest_url: str
    models: Sequence[str]
    caller: Mapping[str, Any] = field(repr=False)


def become(server: Server, models: Sequence[str]) -> None:
    """Replace this process's program with the one that waits. Returns only if that is impossible.

    Args:
        server: The server, which this process has started and owns.
        models: Which models' versions to tell of.
    """
    leash = server.leash
    if leash is None or not server.is_running:
        return
    orders = Orders(server.pid, server.rest_url, models, asdict(server.caller))
    # Not in the list of arguments, which everybody may read: there is a key in it.
    descriptor = os.memfd_create("timonel waiting", 0)
    os.write(descriptor, json.dumps(asdict(orders)).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    # The words after the descriptor are for people who look at the list of processes.
    program = [sys.executable, "-P", "-m", __name__, str(descriptor), "timonel", *sys.argv[1:]]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.set_inheritable(leash, True)
    try:
        # What comes while this program can take it no more, and the next one not yet, waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, process.INTERRUPTS)
        with contextlib.suppress(OSError):
            os.execv(sys.executable, program)  # noqa: S606 - no shell is wanted
    finally:
        os.close(descriptor)
        os.set_inheritable(leash, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, process.INTERRUPTS)


def main(descriptor: int) -> int:
    """Wait for the server's end, and tell of its versions meanwhile; return the exit code."""
    with open(descriptor, "rb") as file:
        orders = Orders(**json.load(file))
    process.begin()
    with contextlib.ExitStack() as watches:

        def watch() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, process.INTERRUPTS)
            for model in orders.models:
                caller = Caller(**orders.caller)
                watches.enter_context(Watch(orders.rest_url, model, tell, caller))

        outlast(Child(orders.pid), watch)
    print("stopped", flush=True)
    process.end()
    return 0


def tell(line: str) -> None:
    """Print one line, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1])))
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(Interrupted.exit_code)
