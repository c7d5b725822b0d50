"""Run a module in a forked image like ``python -m``.

Restores the differences between a new interpreter and a forked one: environment, path, arguments,
streams, random state, threads of linear algebra, and the shutdown of a program.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import logging
import os
import runpy
import sys
import tempfile
import threading
from collections.abc import Callable

from timonel.processes.spawn import ProcessCommand
from timonel.processes.tree import MARKS, mark_process, name_process
from timonel.processes.zygote import renew_random_state, restore_blas_threads


def run_module(command: ProcessCommand) -> int:
    """Run a module as the main program; return its exit code."""
    return run_program(
        command,
        "task",
        lambda: runpy.run_module(command.module, run_name="__main__", alter_sys=True),
    )


def run_program(command: ProcessCommand, name: str, main: Callable[[], object]) -> int:
    """Run ``main`` as the program of this process; return its exit code.

    Does all that an interpreter does at its end, except that the process then exits by `os._exit`:
    libraries' destructors must not run in an image that is shared with other processes.
    """
    _become(command, name)
    code = _run(main)
    return _finish(code)


def _become(command: ProcessCommand, name: str) -> None:
    os.environ.clear()
    os.environ.update(command.env)
    tempfile.tempdir = None  # computed anew in this environment
    mark_process({each: command.env[each] for each in MARKS if each in command.env})
    name_process(name)
    if not (sys.flags.safe_path or command.is_safe_path):
        sys.path.insert(0, command.cwd)
    importlib.invalidate_caches()
    sys.argv = [command.module, *command.args]
    for stream in (sys.stdout, sys.stderr):
        # Keep the zygote's stream objects: its modules may have installed handlers on them.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a text file, as opened by Python
    # As in a new interpreter, the program's own `logging.basicConfig` has an effect.
    for handler in list(logging.root.handlers):
        logging.root.removeHandler(handler)
    logging.root.setLevel(logging.WARNING)
    renew_random_state()
    restore_blas_threads(command.env)
    gc.enable()


def _run(main: Callable[[], object]) -> int:
    try:
        main()
    except SystemExit as end:
        return _exit_code(end)
    except KeyboardInterrupt as error:
        return _show(error, 130)
    except BaseException as error:  # noqa: BLE001 - as an interpreter: print it and exit with 1
        return _show(error, 1)
    return 0


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1


def _show(error: BaseException, code: int) -> int:
    """Print an exception without this module's own frame."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    return code


def _finish(code: int) -> int:
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads; no public way
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # no public way without exiting
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    return code
