"""Watch the versions of a running server through TensorFlow Serving's status API."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from timonel.serving.credentials import ANONYMOUS, Credentials

INTERVAL_S = 1.0
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ReportedVersion:
    """State of a version, such as ``LOADING`` or ``AVAILABLE``, and its error."""

    state: str
    error: str = ""


States = Mapping[int, ReportedVersion]


def read_states(
    rest_url: str, model: str, caller: Credentials = ANONYMOUS
) -> dict[int, ReportedVersion]:
    """Request the states of a model's versions from a server."""
    return parse_states(json.loads(_get(f"{rest_url}/v1/models/{model}", caller)))


def parse_states(answer: Mapping[str, Any]) -> dict[int, ReportedVersion]:
    """Return the states in a ``GetModelStatus`` response."""
    states = {}
    for entry in answer.get("model_version_status", []):
        problem = entry.get("status", {})
        failed = problem.get("error_code", "OK") != "OK"
        error = problem.get("error_message", "") if failed else ""
        states[int(entry["version"])] = ReportedVersion(entry["state"], error)
    return states


def changes(before: States, after: States) -> list[str]:
    """Describe the changes between two snapshots, in one line per change."""
    lines = []
    for version in sorted({*before, *after}):
        old, new = before.get(version), after.get(version)
        was_there = old is not None and old.state == "AVAILABLE"
        is_there = new is not None and new.state == "AVAILABLE"
        if is_there and not was_there:
            lines.append(f"loaded version {version}")
        elif was_there and not is_there:
            lines.append(f"unloaded version {version}")
        if new is not None and new.error and (old is None or old.error != new.error):
            lines.append(f"version {version} cannot be served: {new.error}")
    return lines


class VersionWatcher:
    """Background thread that reports changes of a model's versions."""

    def __init__(
        self,
        rest_url: str,
        model: str,
        on_change: Callable[[str], None],
        caller: Credentials = ANONYMOUS,
    ) -> None:
        self._caller = caller
        self._rest_url = rest_url
        self._model = model
        self._on_change = on_change
        self._known: States = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{model}", daemon=True)

    def __enter__(self) -> Self:
        self.poll()
        # Block signals in the thread: a signal that another thread receives does not wake the one
        # that waits for the server's end.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_TIMEOUT_S)

    def poll(self) -> None:
        """Request the states once and report changes."""
        try:
            found = read_states(self._rest_url, self._model, self._caller)
        except (OSError, ValueError):
            return  # the server is ending or busy loading: try again later
        for line in changes(self._known, found):
            self._on_change(f"{self._model}: {line}")
        self._known = found

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.poll()


def _get(url: str, caller: Credentials) -> bytes:
    """Return the content at a URL of a timonel server.

    Does not use `http.client`, which imports TLS and e-mail: a third of the memory of a process
    that only watches. In HTTP/1.0 the content ends when the connection is closed.
    """
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    head = {"Host": parts.netloc, **caller.headers}
    lines = [f"GET {parts.path} HTTP/1.0", *(f"{name}: {value}" for name, value in head.items())]
    address = (parts.hostname, parts.port or (443 if is_secure else 80))
    with contextlib.ExitStack() as opened:
        link = opened.enter_context(socket.create_connection(address, _TIMEOUT_S))
        if is_secure:
            context = caller.context()
            link = opened.enter_context(context.wrap_socket(link, server_hostname=parts.hostname))
        link.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b"".join(iter(lambda: link.recv(65536), b""))
    status, _, rest = answer.partition(b"\r\n")
    if status.split()[1:2] != [b"200"]:
        raise OSError(f"{url} responded {status!r}")
    return rest.partition(b"\r\n\r\n")[2]
