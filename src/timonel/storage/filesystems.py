"""File systems of URIs, over fsspec, with timeouts and without repeated requests."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from timonel.errors import InputError, MissingExtraError, SpecError
from timonel.storage.uris import normalise, shared_folder

_EXTRA_BY_SCHEME = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "http": "http",
    "https": "http",
}
_SCHEMES = frozenset({*_EXTRA_BY_SCHEME, "file", "memory", "shared"})
_CONNECT_S, _READ_S = 5, 20
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


def open_filesystem(location: str) -> tuple[Any, str]:
    """Return the file system of a path or URI, and the path inside it."""
    import fsspec  # noqa: PLC0415 - costs 40 ms, and most commands need no bucket

    text = normalise(location)
    scheme = text.partition("://")[0] if "://" in text else "file"
    if scheme not in _SCHEMES:
        # A table may name locations: other protocols of fsspec read archives and run caches.
        raise SpecError(f"expected a path, s3://, gs:// or https://, got {text}")
    try:
        if _EXTRA_BY_SCHEME.get(scheme) == "gcs":
            return _google(), text.partition("://")[2]
        if (folder := shared_folder(text)) is not None:
            from timonel.storage.shared_filesystem import SharedFileSystem  # noqa: PLC0415 - fsspec

            return SharedFileSystem(), str(folder)
        options = _options(_EXTRA_BY_SCHEME.get(scheme))
        if scheme != "file":
            options["use_listings_cache"] = False
        # Not `url_to_fs`, which opens chains such as ``s3://a::file:///b``.
        fs = fsspec.filesystem(scheme, **options)
        root = fs._strip_protocol(text)
    except ImportError as error:
        raise MissingExtraError(f"{scheme}://", _EXTRA_BY_SCHEME[scheme]) from error
    if scheme in _EXTRA_BY_SCHEME:
        fs.retries = 1  # callers repeat requests, for a bounded time
    return fs, root


def endpoint(location: str) -> str:
    """Return the address of the server behind a URI; empty for those without one.

    S3-compatible servers may have buckets of the same name.
    """
    fs, _ = open_filesystem(location)
    scheme = location.partition("://")[0]
    return str(fs.s3.meta.endpoint_url) if _EXTRA_BY_SCHEME.get(scheme) == "s3" else ""


def forget_connections() -> None:
    """Drop open file systems, so that the next request reads the credentials again."""
    import fsspec  # noqa: PLC0415 - costs 40 ms, and most commands need no bucket

    _google_token.cache_clear()
    for scheme in ("s3", "gs"):
        with contextlib.suppress(ImportError, ValueError):
            fsspec.get_filesystem_class(scheme).clear_instance_cache()
    with contextlib.suppress(ImportError):
        from gcsfs.core import GCSFileSystem  # noqa: PLC0415 - an extra

        GCSFileSystem.clear_instance_cache()


def _options(extra: str | None) -> dict[str, Any]:
    if extra == "http":
        from aiohttp import ClientTimeout  # noqa: PLC0415 - an extra

        timeout = ClientTimeout(sock_connect=_CONNECT_S, sock_read=_READ_S)
        return {"client_kwargs": {"timeout": timeout, "trust_env": True}}
    if extra != "s3":
        return {}
    # Without these, a server that accepts connections and never answers blocks for minutes.
    timeouts = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S}
    return {"config_kwargs": {**timeouts, "retries": {"max_attempts": 1}}}


def _google() -> Any:
    """Return the file system of Google Cloud Storage.

    fsspec's own choice asks over gRPC for the bucket's kind. Emulators and many firewalls do not
    offer that second service, and neither reading nor writing needs the answer.
    """
    from aiohttp import ClientTimeout  # noqa: PLC0415 - an extra
    from fsspec.config import conf  # noqa: PLC0415 - as above
    from gcsfs.core import GCSFileSystem  # noqa: PLC0415 - an extra

    options: dict[str, Any] = {
        "use_listings_cache": False,
        "requests_timeout": ClientTimeout(sock_connect=_CONNECT_S, sock_read=_READ_S),
    }
    if not any("token" in conf.get(scheme, {}) for scheme in ("gs", "gcs")):
        # By default gcsfs looks for a metadata server twice, once for 15 s or more.
        options["token"] = _google_token()
    fs = GCSFileSystem(**options)
    # As for S3; gcsfs repeats requests for half a minute and logs tracebacks.
    fs._request = type(fs)._request.__wrapped__.__get__(fs)
    return fs


@functools.cache
def _google_token() -> str:
    """Return how to log in at Google: without credentials as anyone, for public buckets.

    Remembered, as asking for a metadata server that does not exist takes seconds.
    """
    import google.auth  # noqa: PLC0415 - an extra
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415 - an extra

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return "anon"
    try:
        google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.full_control"])
    except GoogleAuthError as error:
        if key_file := os.environ.get(_KEY_FILE):
            raise InputError(
                f"cannot use the Google credentials in {key_file}: {error}",
                hint=f"check {_KEY_FILE}",
            ) from error
        return "anon"
    return "google_default"
