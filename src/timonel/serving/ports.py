"""Bind ports and sockets early, so that conflicts are reported before slow work starts."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from timonel.errors import ServingError
from timonel.processes.ports import UNIX

_TRIES = 100


def bind(host: str, port: int, purpose: str) -> socket.socket:
    """Bind a port without listening; clients are refused until the caller listens.

    Args:
        port: The port; 0 for any free one.
    """
    try:
        return _bind(host, port)
    except OSError as error:
        raise refusal(host, port, purpose, error) from error


def socket_path(host: str, protocol: str) -> Path | None:
    """Return the Unix socket of a protocol for the host ``unix:FOLDER``; None for other hosts."""
    return Path(host.removeprefix(UNIX), f"{protocol}.sock") if host.startswith(UNIX) else None


def bind_unix(path: Path) -> socket.socket:
    """Bind a Unix socket in a folder that only this user may enter; create the folder."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        problem = _claim(bound, path)
    except OSError as error:
        problem = str(error)
    if problem is not None:
        bound.close()
        raise ServingError(f"cannot listen on {path}: {problem}", hint="choose another folder")
    return bound


def _claim(bound: socket.socket, path: Path) -> str | None:
    """Bind a Unix socket; return why it may not be bound."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    found = path.parent.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        return f"others may enter {path.parent}"
    if bound.connect_ex(str(path)) == 0:
        return "another server listens there"
    path.unlink(missing_ok=True)
    bound.bind(str(path))
    return None


def authority(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def grpc_address(host: str, port: int) -> str:
    """Return the address of gRPC, as gRPC writes it."""
    path = socket_path(host, "grpc")
    return authority(host, port) if path is None else f"{UNIX}{path}"


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        # Two sockets may share an address until one listens, so only listen() shows whether the
        # port is free. A listening socket cannot be reverted, so close it and bind a new one.
        taken.listen(1)
    except OSError:
        taken.close()
        raise
    bound = taken.getsockname()
    taken.close()
    again = socket.socket(family, kind, protocol)
    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    again.bind(bound)
    return again


def refusal(host: str, port: int, purpose: str, error: OSError) -> ServingError:
    """Return the error for an unavailable port; it proposes a free one."""
    if error.errno == errno.EADDRINUSE:
        free = _propose(host, port)
        return ServingError(
            f"port {port} for {purpose} is already in use",
            hint=f"stop the program that uses it, or choose another port, such as {free}",
        )
    return ServingError(
        f"cannot listen on {authority(host, port)} for {purpose}: {error.strerror or error}",
        hint="choose an address of this machine, and a port above 1023",
    )


def _propose(host: str, port: int) -> int:
    for candidate in range(port + 1, min(port + 1 + _TRIES, 65536)):
        try:
            _bind(host, candidate).close()
        except OSError:
            continue
        return candidate
    return 0
