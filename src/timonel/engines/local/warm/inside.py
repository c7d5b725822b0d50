"""Run a task in a forked image like ``python -m``.

Restores the differences between a new interpreter and a forked one: environment, path, arguments,
streams, random state, threads of linear algebra, and the shutdown of a program.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import random
import runpy
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from timonel.engines.local.child import Command
from timonel.engines.local.environment import TASK_DIR
from timonel.engines.local.processes import MARKER, mark_process, name_process

_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def run_module(command: Command) -> int:
    """Run a module as the main program; return its exit code.

    Does all that an interpreter does at its end, except that the process then exits by `os._exit`:
    libraries' destructors must not run in an image that is shared with other processes.
    """
    _become(command)
    code = _run(command)
    return _finish(code)


def _become(command: Command) -> None:
    os.environ.clear()
    os.environ.update(command.env)
    tempfile.tempdir = None  # computed anew in this environment
    mark_process({name: command.env[name] for name in (MARKER, TASK_DIR) if name in command.env})
    name_process("task")
    if not sys.flags.safe_path:
        sys.path.insert(0, command.cwd)
    importlib.invalidate_caches()
    sys.argv = [command.module, *command.args]
    for stream in (sys.stdout, sys.stderr):
        # Keep the parent's stream objects: its modules may have installed handlers on them.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a text file, as opened by Python
    renew_random_state()
    restore_blas_threads(command.env)
    gc.enable()


def _run(command: Command) -> int:
    try:
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
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
    """Run an interpreter's shutdown steps in its order."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads; no public way
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # no public way without exiting
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    return code


def renew_random_state() -> None:
    """Reseed random state that the task would otherwise share with its parent."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def restore_blas_threads(env: Mapping[str, str]) -> None:
    """Restore the thread count of OpenBLAS, which was loaded with one."""
    asked = env.get("OPENBLAS_NUM_THREADS") or env.get("OMP_NUM_THREADS") or ""
    count = int(asked) if asked.isdigit() and int(asked) else len(os.sched_getaffinity(0))
    for path in _loaded("openblas"):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(count)
                break


def _loaded(part: str) -> set[str]:
    """Return the loaded libraries whose file names contain ``part``."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    # Address, permissions, offset, device, inode, then the path, which may contain blanks.
    paths = {fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) > 5}
    return {path for path in paths if part in Path(path).name and ".so" in path}
