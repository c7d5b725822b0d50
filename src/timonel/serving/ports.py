"""Bind ports early, so that conflicts are reported before slow work starts."""

from __future__ import annotations

import errno
import socket

from timonel.errors import ServingError

_TRIES = 100


def bind(host: str, port: int, purpose: str) -> socket.socket:
    """Bind a port without listening; clients are refused until the caller listens.

    Args:
        host: The address of this machine to bind to.
        port: The port; 0 for any free one.
        purpose: What the port is for, for the error message.

    Raises:
        ServingError: The port is in use or not permitted, or the address is not of this machine.
    """
    try:
        return _bind(host, port)
    except OSError as error:
        raise refusal(host, port, purpose, error) from error


def authority(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
