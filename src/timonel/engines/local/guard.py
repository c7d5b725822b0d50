"""Start daemons: a guard that outlives the command, and the supervisor that it guards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from timonel.engines.environment import inherited
from timonel.errors import EngineError
from timonel.logs import configure_logging
from timonel.processes.tree import adopt_orphans, name_process

_ACCEPTED = b"accepted"
_LAUNCH_TIMEOUT_S = 60.0


def start_daemon(module: str, folder: Path, log: Path, owner: str) -> None:
    """Run ``python -m <module> <folder>``, which detaches a guard; return once it accepts.

    Args:
        module: Module that calls `run_guard`.
        log: File of the daemon's output.
        owner: ``job`` or ``service``, for errors.
    """
    # -P: a file in the current folder must not shadow a standard module.
    command = [sys.executable, "-P", "-m", module, str(folder)]
    try:
        with log.open("ab") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=inherited(),
                start_new_session=True,
                check=False,
                timeout=_LAUNCH_TIMEOUT_S,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"cannot start the {owner}'s supervisor: {error}") from error
    if done.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it printed nothing"
        raise EngineError(f"cannot start the {owner}'s supervisor: {last}")


def run_guard(name: str, guard: Callable[[int], None]) -> int:
    """Run ``guard`` in a detached process; return 0 once a supervisor has accepted, else 1.

    The guard becomes the parent of orphaned processes and ignores signals that ask it to end.

    Args:
        guard: Guards; takes a descriptor for the first `fork_supervisor`.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        _run_to_exit(lambda: _become_guard(name, lambda: guard(writer)))
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        return 0 if pipe.read() == _ACCEPTED else 1


def fork_supervisor(run: Callable[[Callable[[], None]], None], writer: int | None) -> int:
    """Fork a supervisor and return its PID; it exits with 0, or with 1 after an exception.

    Args:
        run: Runs the supervisor; takes a function to call once it has accepted.
        writer: Descriptor of `run_guard`, closed here; None: nobody waits.
    """

    def accepted() -> None:
        if writer is not None:
            os.write(writer, _ACCEPTED)
            os.close(writer)

    def supervise() -> None:
        configure_logging(format_="%(asctime)s %(levelname)s %(message)s")
        run(accepted)

    pid = os.fork()
    if pid == 0:
        _run_to_exit(supervise)
    if writer is not None:
        os.close(writer)
    return pid


def wait_for(supervisor: int) -> int:
    """Wait for the supervisor's exit, reap orphans, and return the supervisor's wait status."""
    while True:
        pid, status = os.wait()
        if pid == supervisor:
            return status


def _become_guard(name: str, guard: Callable[[], None]) -> None:
    os.setsid()
    adopt_orphans()
    name_process(name)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard()


def _run_to_exit(run: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        run()
        code = 0
    except BaseException:  # noqa: BLE001 - the last resort; no caller is left
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
