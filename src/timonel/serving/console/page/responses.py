"""Responses of pages: headers for browsers, static files."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Mapping
from typing import Final, NamedTuple

from timonel.serving.asgi import JSON, Headers, Response, Scope, header

POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy of pages."""
_SAFE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
HTML: Final = b"text/html; charset=utf-8"
_TYPES: Final = {
    "html": HTML,
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}


def page_response(
    status: int,
    body: bytes,
    content_type: bytes = JSON,
    headers: Headers = (),
    policy: bytes = POLICY,
) -> Response:
    """Return a response with the security headers of pages."""
    safe = ((b"content-security-policy", policy), *_SAFE)
    return Response(status, body, content_type, (*headers, *safe))


def fresh(body: bytes, content_type: bytes = JSON, policy: bytes = POLICY) -> Response:
    """Return a response that is never cached."""
    return page_response(200, body, content_type, ((b"cache-control", b"no-store"),), policy)


class StaticFile(NamedTuple):
    """A static file with its HTTP headers."""

    content: bytes
    content_type: bytes
    etag: bytes

    def response(self, scope: Scope) -> Response:
        """Return the response to a request for the file."""
        headers = ((b"etag", self.etag), (b"cache-control", b"no-cache"))
        if self.etag in header(scope["headers"], b"if-none-match"):
            return page_response(304, b"", self.content_type, headers)
        return page_response(200, self.content, self.content_type, headers)


def static_files(package: str, names: Mapping[str, str]) -> dict[str, StaticFile]:
    """Read static files, and return them by path."""
    folder = importlib.resources.files(package) / "static"
    files = {}
    for path, name in names.items():
        content = (folder / name).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'.encode()
        files[path] = StaticFile(content, _TYPES[name.rpartition(".")[2]], etag)
    return files
