"""Start a child in its own session: a new Python, or code in the forked image.

Either way the child gets default signals, its own session (so that ^C in a terminal does not reach
it), standard streams, working folder and environment, and the kernel kills it when its parent dies.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from timonel.processes.tree import die_with_parent, lower_priority

EXIT_CANNOT_START = 127
_EXITED = "ended with exit code "


@dataclass(frozen=True)
class ProcessCommand:
    """Command ``python -m <module> <args>`` with its environment and streams.

    Attributes:
        module: Module to run.
        args: Arguments.
        env: Complete environment.
        cwd: Working folder.
        output: File to which standard output and error are appended.
        niceness: Added to the inherited niceness.
        is_safe_path: Whether modules are not looked for in the working folder.
    """

    module: str
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    output: Path
    niceness: int = 0
    is_safe_path: bool = False


Runner = Callable[[ProcessCommand], int]


def spawn(command: ProcessCommand, run: Runner | None = None) -> int:
    """Start a child and return its PID.

    Args:
        run: Runs the command in the forked image and returns its exit code; None: execute a new
            Python. The caller must be single-threaded.
    """
    parent_pid = os.getpid()
    # A signal between fork and reset would run the parent's handlers in the child.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _be_child(command, run, parent_pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def execute(arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Execute a program in place of this process; without a slash, it is looked up in the PATH."""
    # Python ignores these, and ignored signals stay ignored across exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvpe(arguments[0], list(arguments), dict(env))  # noqa: S606 - no shell


def close_inherited(keep: Sequence[int] = ()) -> None:
    """Close all descriptors except the standard ones and ``keep``.

    The Python objects of closed descriptors must stay referenced: freed later, they would close
    descriptors that have been reused.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - only names are needed
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the descriptor that listed the folder


def describe_exit(code: int) -> str:
    """Describe an exit code; negative for a signal."""
    if code >= 0:
        return f"{_EXITED}{code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def exit_code_in(description: str) -> int | None:
    """Return the exit code in a text that begins with `describe_exit`; None for other ends."""
    code = description.removeprefix(_EXITED).partition(":")[0]
    return int(code) if description.startswith(_EXITED) and code.isdecimal() else None


def reset_signals() -> None:
    """Reset all signals as in a new Python, and unblock them."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in {None, signal.SIG_DFL}:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _redirect(output: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _be_child(command: ProcessCommand, run: Runner | None, parent_pid: int) -> NoReturn:
    code = EXIT_CANNOT_START
    try:
        os.setsid()
        die_with_parent(parent_pid)
        reset_signals()
        _redirect(command.output)
        if command.niceness:
            lower_priority(command.niceness)
        os.chdir(command.cwd)
        if run is None:
            execute([sys.executable, "-m", command.module, *command.args], command.env)
        close_inherited()
        code = run(command)
    except BaseException:  # noqa: BLE001 - no code of the parent may continue in this process
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
