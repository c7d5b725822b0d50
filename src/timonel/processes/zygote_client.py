"""Start zygotes, and request children from them.

A zygote must not be a descendant of a job, or it would end with that job. It is started by the
process that starts a job's guard, before the guard exists. Its socket is in a folder of this user
alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from timonel.errors import SpecError, TimonelError
from timonel.processes.zygote import (
    BACKLOG,
    ForkedChild,
    ZygoteError,
    is_same_user,
    is_stopped,
    zygote_environment,
)
from timonel.processes.zygote_key import is_current, zygote_key
from timonel.storage import exclusive
from timonel.units import parse_seconds

LINGER = "TIMONEL_WARM_LINGER"
"""Environment variable: a zygote's idle time in seconds; 0 ends it with its job."""
DEFAULT_LINGER_S = 600.0
_started: list[subprocess.Popen[bytes]] = []
"""Zygotes that this process started, to reap them."""


def ensure_zygote(preload: Sequence[str], env: Mapping[str, str]) -> None:
    """Start the zygote for these modules, unless it is running.

    Returns before the imports are done; requests wait for them.
    """
    folder, key = _place(preload, env)
    try:
        with exclusive(folder / f"{key}.lock"), _socket_path(folder, key) as path:
            # A zygote whose socket is removed notices it and exits.
            if not (_is_listening(path) and is_current(folder / f"{key}.files")):
                _start(folder, key, path, preload, env)
    except (OSError, TimonelError) as error:
        raise ZygoteError(f"cannot start a zygote: {error}") from error


def request_child(
    preload: Sequence[str],
    env: Mapping[str, str],
    child_end: socket.socket,
    entry: str,
    marks: Mapping[str, str],
) -> ForkedChild:
    """Ask the zygote to fork a child that runs ``entry`` on ``child_end``.

    Args:
        preload: Modules that the zygote has imported.
        child_end: The child's end of a connection; a copy is passed on.
        entry: Function as ``module:name``, called with the connection.
        marks: Variables that `timonel.processes.tree.marked` finds in the child.
    """
    folder, key = _place(preload, env)
    request = {"entry": entry, "marks": dict(marks), "linger_s": _linger_s(env)}
    message = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _connect(connection, folder, key)
        socket.send_fds(connection, [message], [child_end.fileno()])
    except OSError as error:
        connection.close()
        raise ZygoteError(f"no zygote listens ({error.strerror})") from error
    except BaseException:
        connection.close()
        raise
    return ForkedChild(connection)


def _place(preload: Sequence[str], env: Mapping[str, str]) -> tuple[Path, str]:
    if sys.platform != "linux":
        raise ZygoteError("zygotes need Linux")
    return _runtime_dir(), zygote_key(preload, env)


def _runtime_dir() -> Path:
    """Return the folder of this user's sockets, creating it if needed."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "timonel") if base else Path("/tmp", f"timonel-{os.getuid()}")  # noqa: S108 - checked below
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ZygoteError(f"cannot use {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ZygoteError(f"{path} is not a folder of user {os.getuid()}; remove it")
    if found.st_mode & 0o077:
        raise ZygoteError(f"{path} is accessible to other users; set its mode to 0700")
    return path


def _linger_s(env: Mapping[str, str]) -> float:
    try:
        return parse_seconds(env.get(LINGER, DEFAULT_LINGER_S))
    except SpecError as error:
        raise ZygoteError(f"{LINGER}: {error}") from error


def _connect(connection: socket.socket, folder: Path, key: str) -> None:
    with _socket_path(folder, key) as path:
        connection.connect(path)
    if not is_same_user(connection):
        raise ZygoteError("the zygote belongs to another user")
    if is_stopped(connection):
        raise ZygoteError("the zygote is stopped")


@contextlib.contextmanager
def _socket_path(folder: Path, key: str) -> Iterator[str]:
    """Yield a path of the socket that is short enough for an address."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{key}.sock"
    finally:
        os.close(descriptor)


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return not is_stopped(probe)


def _start(
    folder: Path, key: str, path: str, preload: Sequence[str], env: Mapping[str, str]
) -> None:
    """Start a zygote whose socket listens already, to queue requests."""
    _started[:] = [each for each in _started if each.poll() is None]
    for suffix in ("sock", "files"):
        (folder / f"{key}.{suffix}").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(BACKLOG)
        number = str(listener.fileno())
        command = [sys.executable, "-m", "timonel.processes.zygote_process", number, key, *preload]
        with (folder / f"{key}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The working folder comes first on its import path, so use one that only this user
                # writes to.
                cwd=folder,
                env=zygote_environment(env),
                start_new_session=True,
                pass_fds=(listener.fileno(),),
            )
    _started.append(process)
