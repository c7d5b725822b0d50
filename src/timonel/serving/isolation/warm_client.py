"""Connect to a warm zygote; see `timonel.serving.isolation.warm`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timonel._version import __version__
from timonel.processes.zygote import MESSAGE_BYTES, import_environment

WARM_ZYGOTE = "TIMONEL_WARM_ZYGOTE"
"""Variable with the path of the warm zygote's Unix socket."""


def imports() -> dict[str, str]:
    """Return the environment and versions that server and zygote must share."""
    libraries = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras")}
    return {**import_environment(os.environ), **libraries, "timonel": __version__}


def connect_warm(settings: Mapping[str, Any]) -> socket.socket | None:
    """Ask the warm zygote to fork a zygote for this server, used like a spawned one.

    It writes to the output of this process. Its answer is ``ready``, or ``refused`` if it
    was started with other settings.

    Args:
        settings: ``runtime``, ``path`` and ``environment``, as for a spawned zygote.

    Returns:
        A connection; None if there is no warm zygote.
    """
    path = os.environ.get(WARM_ZYGOTE)
    if not path:
        return None
    request = {
        **settings,
        "cwd": str(Path.cwd()),
        "environ": dict(os.environ),
        "imports": imports(),
    }
    message = json.dumps(request).encode()
    if len(message) > MESSAGE_BYTES:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # Paths of sockets must be short, and this may be a link.
        connection.connect(os.path.realpath(path))
        socket.send_fds(connection, [message], [1, 2])
    except OSError:
        connection.close()
        return None
    return connection
