"""Static files of the page, served from memory."""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Mapping
from typing import Final, NamedTuple

from timonel.serving.auth.url_rights import STATIC

_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
}


class File(NamedTuple):
    """A static file with its HTTP headers."""

    content: bytes
    content_type: bytes
    etag: bytes


def static_files() -> Mapping[str, File]:
    """Read the page's files, by path."""
    folder = importlib.resources.files("timonel.serving.console.page") / "static"
    files = {}
    for path, name in STATIC.items():
        content = (folder / name).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'.encode()
        files[path] = File(content, _TYPES[name.rpartition(".")[2]], etag)
    return files
