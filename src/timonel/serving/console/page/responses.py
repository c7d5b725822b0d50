"""Responses of pages: headers for browsers, static files."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Mapping
from typing import Final, NamedTuple

from timonel.serving.asgi import Scope, Send, header

Headers = list[tuple[bytes, bytes]]

POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy of pages."""
_SAFE: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_JSON: Final = b"application/json"
HTML: Final = b"text/html; charset=utf-8"
_TYPES: Final = {
    "html": HTML,
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}


class Response(NamedTuple):
    """A response to a GET or HEAD request."""

    status: int
    body: bytes
    content_type: bytes = _JSON
    headers: Headers = []  # noqa: RUF012 - a NamedTuple's default, never mutated
    policy: bytes = POLICY

    async def send(self, scope: Scope, send: Send) -> None:
        """Answer a request."""
        headers = [
            (b"content-type", self.content_type),
            (b"content-length", str(len(self.body)).encode()),
            *self.headers,
            (b"content-security-policy", self.policy),
            *_SAFE,
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else self.body
        await send({"type": "http.response.body", "body": body})


def fresh(body: bytes, content_type: bytes = _JSON) -> Response:
    """Return a response that is never cached."""
    return Response(200, body, content_type, [(b"cache-control", b"no-store")])


class StaticFile(NamedTuple):
    """A static file with its HTTP headers."""

    content: bytes
    content_type: bytes
    etag: bytes

    def response(self, scope: Scope) -> Response:
        """Return the response to a request for the file."""
        headers = [(b"etag", self.etag), (b"cache-control", b"no-cache")]
        if self.etag in header(scope["headers"], b"if-none-match"):
            return Response(304, b"", self.content_type, headers)
        return Response(200, self.content, self.content_type, headers)


def static_files(package: str, names: Mapping[str, str]) -> dict[str, StaticFile]:
    """Read static files.

    Args:
        package: The package whose folder ``static`` has the files.
        names: The name of a file, by path.

    Returns:
        The files by path.
    """
    folder = importlib.resources.files(package) / "static"
    files = {}
    for path, name in names.items():
        content = (folder / name).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'.encode()
        files[path] = StaticFile(content, _TYPES[name.rpartition(".")[2]], etag)
    return files
