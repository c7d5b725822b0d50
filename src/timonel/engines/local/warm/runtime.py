"""Runtime folder of warm parents, accessible to this user only."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")


class WarmUnavailableError(Exception):
    """No warm parent is available; tasks start without one.

    The message gives the reason.
    """


def runtime_dir() -> Path:
    """Return the folder of this user's sockets, creating it if needed.

    Raises:
        WarmUnavailableError: Other users could write to it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "timonel") if base else Path("/tmp", f"timonel-{os.getuid()}")  # noqa: S108 - checked below
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise WarmUnavailableError(f"cannot use {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise WarmUnavailableError(f"expected {path} to be a folder of user {os.getuid()}")
    if found.st_mode & 0o077:
        raise WarmUnavailableError(f"expected {path} to be closed to others (mode 0700)")
    return path


def short_path(folder: int, name: str) -> str:
    """Return a path short enough for a socket address.

    It leads to ``name`` in an open folder.
    """
    return f"/proc/self/fd/{folder}/{name}"


def is_same_user(connection: socket.socket) -> bool:
    """Whether the peer of a connection belongs to this user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid == os.getuid())


def check_same_user(connection: socket.socket) -> None:
    """Check that the peer of a connection belongs to this user.

    Raises:
        WarmUnavailableError: It belongs to another user.
    """
    if not is_same_user(connection):
        raise WarmUnavailableError("the warm parent belongs to another user")
