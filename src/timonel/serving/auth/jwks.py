"""An issuer's keys: from a file, or fetched and kept as long as that is wise."""

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
    """Keys and when they were fetched; pure decisions about when to fetch them again.

    Args:
        keys: The keys of the last success.
        fetched: When that was, in seconds of a clock that never goes back.
        tried: When fetching was last tried.
    """

    keys: tuple[SigningKey, ...] = ()
    fetched: float = -math.inf
    tried: float = -math.inf

    def usable(self, now: float, stale_s: float) -> tuple[SigningKey, ...]:
        """Return the keys, as long as they are not too old to be believed."""
        return self.keys if now - self.fetched < stale_s else ()

    def is_old(self, now: float, refresh_s: float) -> bool:
        """Whether to fetch although there are keys."""
        return now - self.fetched >= refresh_s and self.may_try(now)

    def may_try(self, now: float) -> bool:
        """Whether the last attempt is long enough ago.

        Whoever sends tokens with invented key ids must not make the server ask each time.
        """
        return now - self.tried >= RETRY_S

    def succeeded(self, keys: tuple[SigningKey, ...], now: float) -> Cached:
        """Return the state after a success."""
        return Cached(keys, now, now)

    def attempted(self, now: float) -> Cached:
        """Return the state after an attempt has begun."""
        return replace(self, tried=now)


class FileKeys:
    """Keys in a file that are read again when it changes. For one event loop.

    Raises:
        TimonelError: It cannot be read now.
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
        """Return the keys."""
        return self._watched.refreshed(now)


class FetchedKeys:
    """Keys that are fetched off the event loop, one fetch at a time. For one event loop.

    Args:
        fetch: Returns the JWKS document; blocks.
        settings: How long keys are kept.
        clock: A clock that never goes back.
    """

    def __init__(self, fetch: Fetch, settings: JwtSettings, clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._settings = settings
        self._clock = clock
        self._cached = Cached()
        self._task: asyncio.Task[None] | None = None

    async def get(self, header: Header, now: float) -> Sequence[SigningKey]:
        """Return the keys, fetched first if the one that is wanted is not among them.

        Keys that have become old are used while new ones are fetched.
        """
        keys = self._cached.usable(now, self._settings.stale_s)
        if header.algorithm not in self._settings.algorithms:
            return keys  # no key could help
        if not find_keys(keys, header):
            if self._task is not None or self._cached.may_try(now):
                # Waiting is for this request alone: its end must not end the fetch for others.
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
            # The time limit of a socket is for each read; an answer by drops has none.
            async with asyncio.timeout(self._settings.timeout_s):
                text = await asyncio.to_thread(self._fetch)
            self._cached = self._cached.succeeded(parse_keys(text, "the JWKS"), self._clock())
        except (TimonelError, TimeoutError) as error:
            _LOG.warning("the keys of %s cannot be fetched: %s", self._settings.issuer, error)
        finally:
            self._task = None


def key_source(settings: JwtSettings, clock: Callable[[], float]) -> FileKeys | FetchedKeys:
    """Return where an issuer's keys come from.

    Raises:
        TimonelError: They are in a file that cannot be read.
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
    """Keys come from where the operator said, not from where an answer points."""

    def redirect_request(self, *_: Any) -> None:
        """Return none, so that a redirect is an error."""


_OPENER = urllib.request.build_opener(_NoRedirects)
