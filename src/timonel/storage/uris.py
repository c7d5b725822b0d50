"""Local paths and fsspec URIs in one normalised spelling.

A location is a string: an absolute local path, or ``scheme://...``. ``file://`` is turned into a
path, so that locations returned by this module can be compared as text. ``shared:///folder`` is a
folder that several machines mount at that path, used as a bucket.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from timonel.errors import InputError, SpecError

_SHARED = "shared://"
_SECRET = re.compile(r"(?i)sig|token|secret|passw|credential|key|auth|x-(amz|goog|ms)-|expires")
"""Names of parameters that sign an address."""


def shared_uri(folder: Path) -> str:
    """Return the URI of a folder that several machines mount."""
    return f"{_SHARED}{folder}"


def shared_folder(uri: str) -> Path | None:
    """Return the folder of a URI from `shared_uri`; None for other locations."""
    return Path(uri.removeprefix(_SHARED)) if uri.startswith(_SHARED) else None


def normalise(location: str | os.PathLike[str]) -> str:
    """Normalise ``location`` to an absolute path or ``scheme://...``.

    Raises:
        SpecError: The location is empty, has a NUL, or is a scheme without a bucket or path.
    """
    text = os.fspath(location)
    if not text.strip():
        raise SpecError("the path or URI is empty")
    if text.rstrip("/").endswith(":") and "://" in text:
        raise SpecError(f"{text!r} has no bucket or path after the scheme")
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if "://" in text:
        return text.rstrip("/")
    # Unlike pathlib, this keeps symlinks, and takes "~name" as a file if no such user exists.
    if "\0" in text:
        raise SpecError(f"a path cannot contain a NUL character: {text!r}")
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 - see above


def without_credentials(location: str) -> str:
    """Return a URI without user, password and signatures, as it may be stored and shown."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    address, mark, query = rest.partition("?")
    server, slash, path = address.partition("/")
    server = server.rpartition("@")[2] if scheme in {"http", "https"} else server
    kept = "&".join(part for part in query.split("&") if not _SECRET.search(part.partition("=")[0]))
    shown = mark + kept if kept or not query else ""
    return f"{scheme}://{server}{slash}{path}{shown}"


def is_local(location: str | os.PathLike[str]) -> bool:
    """Tell whether ``location`` is on this machine's file system."""
    return "://" not in normalise(location)


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return ``location`` as a path.

    Raises:
        InputError: The location is remote.
    """
    text = normalise(location)
    if "://" in text:
        raise InputError(f"expected a local path, got {text}", hint="copy it to this machine first")
    return Path(text)


def join(location: str | os.PathLike[str], *parts: str) -> str:
    """Return the location of ``parts`` below ``location``."""
    text = normalise(location)
    if "://" in text:
        return posixpath.join(text, *parts)
    return str(Path(text, *parts))
