"""Start warm parents, and request agents from them.

The parent must not be a descendant of a job, or it would end with that job. It is started by the
process that starts a job's guard, before the guard exists.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from timonel.engines.local.processes import RESERVED, RESERVED_BYTES
from timonel.engines.local.warm.key import import_environment, warm_key
from timonel.engines.local.warm.runtime import (
    WarmUnavailableError,
    check_same_user,
    runtime_dir,
    short_path,
)
from timonel.engines.local.warm.stamps import is_current
from timonel.errors import SpecError, TimonelError
from timonel.storage import exclusive
from timonel.units import parse_seconds

LINGER = "TIMONEL_WARM_LINGER"
"""Environment variable: a warm parent's idle time in seconds.

0 ends the parent with its job.
"""
DEFAULT_LINGER_S = 600.0
MESSAGE_BYTES = 1 << 16
_BACKLOG = 128


class WarmRequest:
    """Pending request for an agent of a warm parent. Owns its connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    def fileno(self) -> int:
        """Return a descriptor that becomes readable with the answer."""
        return self._connection.fileno()

    def answer(self) -> int | None:
        """Return the agent's PID, or None if the answer is pending.

        Raises:
            WarmUnavailableError: The parent refused or is gone.
        """
        try:
            message = self._connection.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise WarmUnavailableError(f"the warm parent is gone ({error.strerror})") from error
        if not message:
            raise WarmUnavailableError("the warm parent ended before it could answer")
        value = json.loads(message)
        if "refused" in value:
            raise WarmUnavailableError(value["refused"])
        return int(value["pid"])

    def close(self) -> None:
        """Close the request, answered or not."""
        self._connection.close()


def ensure_parent(preload: Sequence[str], env: Mapping[str, str]) -> None:
    """Start the warm parent for these modules, unless it is running.

    Returns before the imports are done; requests wait for them.

    Raises:
        WarmUnavailableError: It cannot be started.
    """
    folder, key = _place(preload, env)
    try:
        with exclusive(folder / f"{key}.lock"), _opened(folder) as descriptor:
            path = short_path(descriptor, f"{key}.sock")
            # A parent whose socket is removed notices it and exits.
            if not (_is_listening(path) and is_current(folder / f"{key}.files")):
                _start(folder, key, path, preload, env)
    except (OSError, TimonelError) as error:
        raise WarmUnavailableError(f"cannot start a warm parent: {error}") from error


def request_agent(
    preload: Sequence[str], env: Mapping[str, str], agent_end: socket.socket, token: str
) -> WarmRequest:
    """Ask the warm parent to fork an agent on ``agent_end``.

    Args:
        preload: Modules that the parent has imported.
        env: Environment of the agent's tasks.
        agent_end: The agent's end; a copy is passed on.
        token: Identity of the supervisor, which marks its processes.

    Raises:
        WarmUnavailableError: No such parent is listening.
    """
    folder, key = _place(preload, env)
    message = json.dumps({"token": token, "linger_s": _linger_s(env)}).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _opened(folder) as descriptor:
            connection.connect(short_path(descriptor, f"{key}.sock"))
        check_same_user(connection)
        socket.send_fds(connection, [message], [agent_end.fileno()])
    except OSError as error:
        connection.close()
        raise WarmUnavailableError(f"no warm parent listens ({error.strerror})") from error
    except BaseException:
        connection.close()
        raise
    return WarmRequest(connection)


def _place(preload: Sequence[str], env: Mapping[str, str]) -> tuple[Path, str]:
    if sys.platform != "linux":
        raise WarmUnavailableError("warm parents exist on Linux only")
    return runtime_dir(), warm_key(preload, env)


def _linger_s(env: Mapping[str, str]) -> float:
    try:
        return parse_seconds(env.get(LINGER, DEFAULT_LINGER_S))
    except SpecError as error:
        raise WarmUnavailableError(f"{LINGER}: {error}") from error


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _start(
    folder: Path, key: str, path: str, preload: Sequence[str], env: Mapping[str, str]
) -> None:
    """Start a parent whose socket listens already, to queue requests."""
    for suffix in ("sock", "files"):
        (folder / f"{key}.{suffix}").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(_BACKLOG)
        number = str(listener.fileno())
        command = [sys.executable, "-m", "timonel.engines.local.warm.parent", number, key, *preload]
        with (folder / f"{key}.log").open("wb") as log:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The working folder comes first on its import path, so use one that only this user
                # writes to.
                cwd=folder,
                env=parent_environment(env),
                start_new_session=True,
                pass_fds=(listener.fileno(),),
            )


def parent_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which imports start no threads.

    A process with several threads cannot fork safely.

    It has only the variables that are part of the key, so that all parents of a key are alike.
    Tasks get all of ``env``, with its own values.
    """
    shared = import_environment(env)
    arrow = shared.get("JE_ARROW_MALLOC_CONF")
    return {
        **shared,
        # numpy's linear algebra starts one thread per CPU when it is loaded,
        "OPENBLAS_NUM_THREADS": "1",
        # and pyarrow's allocator a background thread that frees memory.
        "JE_ARROW_MALLOC_CONF": ",".join(filter(None, [arrow, "background_thread:false"])),
        RESERVED: " " * RESERVED_BYTES,
    }
