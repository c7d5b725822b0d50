"""Load generator: clients that send requests continuously and count failures."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from timonel.cli.watch import read_states

CLIENTS = 2
RATE_PER_S = 20.0
"""Request rate per client, low enough to leave cores for training."""
_LOOK_S = 0.1
_TIMEOUT_S = 30.0


@dataclass
class LoadStats:
    """Observations of the clients. The lock guards all fields.

    ``asked`` has each request's start (seconds since the epoch) and latency in seconds.
    """

    requests: int = 0
    right: int = 0
    failures: list[str] = field(default_factory=list)
    asked: list[tuple[float, float]] = field(default_factory=list)
    versions: list[tuple[float, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def latency_ms(self, share: float) -> float:
        """Return the latency quantile at ``share``, between 0 and 1, in milliseconds."""
        ordered = sorted(latency for _, latency in self.asked)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class LoadGenerator:
    """Request predictions from several threads until stopped.

    Args:
        rest_url: REST URL of the server.
        model: Name of the model.
        images: Image files for requests, each in a folder named after its label.
    """

    def __init__(self, rest_url: str, model: str, images: Sequence[Path]) -> None:
        self.stats = LoadStats()
        self._rest_url = rest_url
        self._model = model
        self._bodies = [(path.parent.name, body_of(path)) for path in images]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number,), daemon=True)
            for number in range(CLIENTS)
        ]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the clients. Idempotent."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def wait_for_version(self, version: int, timeout_s: float) -> bool:
        """Wait until the newest served version is ``version``; return whether that happened."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self.stats.lock:
                if self.stats.versions and self.stats.versions[-1][1] == version:
                    return True
            time.sleep(_LOOK_S)
        return False

    def _ask_on(self, client: int) -> None:
        address = urlsplit(self._rest_url)
        connection = http.client.HTTPConnection(
            address.hostname or "127.0.0.1", address.port, timeout=_TIMEOUT_S
        )
        number = client
        while not self._stop.wait(1 / RATE_PER_S):
            label, body = self._bodies[number % len(self._bodies)]
            number += CLIENTS
            self._ask(connection, label, body)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, label: str, body: bytes) -> None:
        began, started = time.time(), time.monotonic()
        failure, answer = None, ""
        try:
            connection.request("POST", f"/v1/models/{self._model}:predict", body)
            response = connection.getresponse()
            content = response.read()
            if response.status == http.HTTPStatus.OK:
                answer = label_in(content)
            else:
                failure = f"{response.status}: {content[:200].decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            failure = f"{type(error).__name__}: {error}"
            connection.close()
        with self.stats.lock:
            self.stats.requests += 1
            self.stats.asked.append((began, time.monotonic() - started))
            self.stats.right += answer == label
            if failure is not None:
                self.stats.failures.append(failure)

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            try:
                states = read_states(self._rest_url, self._model)
            except (OSError, ValueError):
                continue  # the clients report whether the server answers
            served = [number for number, state in states.items() if state.state == "AVAILABLE"]
            with self.stats.lock:
                last = self.stats.versions[-1][1] if self.stats.versions else None
                if served and max(served) != last:
                    self.stats.versions.append((time.time(), max(served)))


def body_of(path: Path) -> bytes:
    """Return the body of a prediction request for an image file."""
    content = base64.b64encode(path.read_bytes()).decode()
    return json.dumps({"instances": [{"b64": content}]}).encode()


def label_in(content: bytes) -> str:
    """Return the label in a prediction response."""
    (prediction,) = json.loads(content)["predictions"]
    return str(prediction["label"] if isinstance(prediction, dict) else prediction)
