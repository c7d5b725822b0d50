"""Signing keys of a token issuer, from a file or URL."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from timonel.errors import CorruptError, ServingError, TimonelError
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.auth.tokens import Header, SigningKey, find_keys, parse_keys
from timonel.serving.settings.auth import JwtSettings

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 2**20
RETRY_S = 10.0
Fetch = Callable[[], bytes]


@dataclass(frozen=True)
class Cached:
    """Fetched keys and the decision when to fetch again. Pure.

    Args:
        keys: The keys of the last successful fetch.
        fetched: Time of that fetch, in seconds of a monotonic clock.
        tried: Time of the last attempt.
    """

    keys: tuple[SigningKey, ...] = ()
    fetched: float = -math.inf
    tried: float = -math.inf

    def usable(self, now: float, stale_s: float) -> tuple[SigningKey, ...]:
        """Return the keys, or none if they are stale."""
        return self.keys if now - self.fetched < stale_s else ()

    def is_old(self, now: float, refresh_s: float) -> bool:
        """Whether to refresh keys that are still usable."""
        return now - self.fetched >= refresh_s and self.may_try(now)

    def may_try(self, now: float) -> bool:
        """Whether the last attempt is at least `RETRY_S` ago.

        Clients that send tokens with invented key ids must not cause a fetch each time.
        """
        return now - self.tried >= RETRY_S

    def succeeded(self, keys: tuple[SigningKey, ...], now: float) -> Cached:
        """Return the state after a successful fetch."""
        return Cached(keys, now, now)

    def attempted(self, now: float) -> Cached:
        """Return the state after the start of an attempt."""
        return replace(self, tried=now)


class FileKeys:
    """Keys from a file that is reloaded on change.

    For one event loop.

    Raises:
        TimonelError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        def read() -> tuple[SigningKey, ...]:
            try:
                return parse_keys(path.read_bytes(), str(path))
            except OSError as error:
                raise ServingError(
                    f"expected a JWKS file at {path}, got {error.strerror}"
                ) from error

        def failed(error: Exception) -> None:
            _LOG.error("the keys of tokens stay what they were: %s", error)

        self._watched = ReloadedFile((path,), read, failed)

    async def get(self, header: Header, now: float) -> Sequence[SigningKey]:  # noqa: ARG002
        """Return the current keys."""
        return self._watched.refreshed(now)


class FetchedKeys:
    """Keys fetched in a thread, one fetch at a time.

    For one event loop.

    Args:
        fetch: Returns the JWKS document; blocks.
        settings: Sets how long keys are cached.
        clock: A monotonic clock.
    """

    def __init__(self, fetch: Fetch, settings: JwtSettings, clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._settings = settings
        self._clock = clock
        self._cached = Cached()
        self._task: asyncio.Task[None] | None = None

    async def get(self, header: Header, now: float) -> Sequence[SigningKey]:
        """Return the keys, fetching them first if the requested key is missing.

        Keys due for a refresh are used until the new ones arrive.
        """
        keys = self._cached.usable(now, self._settings.stale_s)
        if header.algorithm not in self._settings.algorithms:
            return keys  # no key can verify it
        if not find_keys(keys, header):
            if self._task is not None or self._cached.may_try(now):
                # Shielded: a cancelled request must not cancel the fetch for other requests.
                await asyncio.shield(self._start())
            return self._cached.usable(self._clock(), self._settings.stale_s)
        if self._cached.is_old(now, self._settings.refresh_s):
            self._start()
        return keys

    def _start(self) -> asyncio.Task[None]:
        if self._task is None:
            self._cached = self._cached.attempted(self._clock())
            self._task = asyncio.create_task(self._refresh())
        return self._task

    async def _refresh(self) -> None:
        try:
            # A socket timeout applies to each read, not to a slow response as a whole.
            async with asyncio.timeout(self._settings.timeout_s):
                text = await asyncio.to_thread(self._fetch)
            self._cached = self._cached.succeeded(parse_keys(text, "the JWKS"), self._clock())
        except (TimonelError, TimeoutError) as error:
            _LOG.warning("the keys of %s cannot be fetched: %s", self._settings.issuer, error)
        finally:
            self._task = None


def key_source(settings: JwtSettings, clock: Callable[[], float]) -> FileKeys | FetchedKeys:
    """Return the key source for an issuer: a file or a URL.

    Raises:
        TimonelError: The key file cannot be read.
    """
    place = settings.jwks
    if place is not None and urlsplit(place).scheme not in {"http", "https"}:
        return FileKeys(Path(place))
    return FetchedKeys(lambda: _fetch_keys(settings), settings, clock)


def _fetch_keys(settings: JwtSettings) -> bytes:
    if settings.jwks is not None:
        return _download(settings.jwks, settings.timeout_s)
    url = settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
    found = _json(_download(url, settings.timeout_s), url)
    place = found.get("jwks_uri")
    if found.get("issuer") != settings.issuer or not isinstance(place, str):
        raise CorruptError(f"expected the configuration of {settings.issuer} at {url}")
    if urlsplit(place).scheme != urlsplit(settings.issuer).scheme:
        raise CorruptError(f"expected keys over TLS from {url}, got {place}")
    return _download(place, settings.timeout_s)


def _download(url: str, timeout_s: float) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            content: bytes = answer.read(_MOST_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise ServingError(f"expected {url} to answer, got {error}") from error
    if len(content) > _MOST_BYTES:
        raise ServingError(f"expected at most {_MOST_BYTES} bytes from {url}")
    return content


def _json(content: bytes, origin: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise CorruptError(f"expected JSON from {origin}, got {error}") from error
    return found if isinstance(found, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Reject redirects: only the configured location may supply keys."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, which makes a redirect an error."""


_OPENER = urllib.request.build_opener(_NoRedirects)
