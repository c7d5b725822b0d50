"""Who may use which cores: the same for all servers, and apart from the client where it can be."""

from __future__ import annotations

import os
from functools import cache

_SERVERS = 2


@cache
def machine() -> tuple[int, ...]:
    """Return the cores of the machine."""
    return tuple(sorted(os.sched_getaffinity(0)))


def servers() -> tuple[int, ...]:
    """Return the cores of the server under load."""
    return machine()[:_SERVERS]


def client() -> tuple[int, ...]:
    """Return the cores of the client: others than the servers' if there are any."""
    return machine()[_SERVERS:] or machine()


def pinned(cores: tuple[int, ...]) -> list[str]:
    """Return what a command is preceded by to run on ``cores`` only."""
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]


def told() -> str:
    """Say it in words."""
    if set(client()) & set(servers()):
        return f"server and client share {len(servers())} cores"
    return f"server on {len(servers())} cores, client on others"
