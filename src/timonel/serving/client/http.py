"""Client connection to a REST server, with the standard library only."""

from __future__ import annotations

import http.client
import json
from typing import Any, Self
from urllib.parse import quote, urlsplit

from timonel.errors import ServingError, SpecError
from timonel.serving.credentials import ANONYMOUS, Credentials

_TIMEOUT_S = 120.0


class HttpError(ServingError):
    """A server answered with an error.

    Args:
        status: The HTTP status.
        message: The server's error message.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"expected an answer, the server said: {message}")
        self.status = status


class Connection:
    """A connection that is kept open between requests. Not thread-safe.

    Args:
        url: The server, such as ``http://127.0.0.1:8501``.
        caller: The client's credentials.
    """

    def __init__(self, url: str, caller: Credentials = ANONYMOUS) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", **caller.headers}
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SpecError(f"expected a server such as http://127.0.0.1:8501, got {url}")
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_TIMEOUT_S, context=caller.context()
            )
        else:
            self._connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=_TIMEOUT_S
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON at ``path``.

        Raises:
            HttpError: The server answered with an error.
            ServingError: The server does not answer, or not with JSON.
        """
        return self._request("GET", path, None)

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send JSON to ``path`` and return the JSON response.

        Raises:
            HttpError: The server answered with an error.
            ServingError: The server does not answer, or not with JSON.
        """
        return self._request("POST", path, json.dumps(content).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        try:
            self._connection.request(method, path, body=body, headers=self._headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ServingError(
                f"expected a server at {self._url}, got {_reason(error)}",
                hint="start one with 'timonel serve NAME', or check the address",
            ) from error
        return self._parse(response.status, answer)

    def _parse(self, status: int, answer: bytes) -> dict[str, Any]:
        try:
            content = json.loads(answer)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise ServingError(
                f"expected JSON from {self._url}, got HTTP {status} with {answer[:60]!r}",
                hint="check that a TensorFlow Serving REST server listens there",
            )
        if status != 200:
            raise HttpError(status, str(content.get("error", f"HTTP {status}")))
        return content


def model_path(model: str, version: int | None = None) -> str:
    """Return the path of a model, or of one version of it."""
    path = f"/v1/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{version}"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
