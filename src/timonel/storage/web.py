"""Download files that data of others names: from public servers, of bounded size and time."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import ipaddress
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from timonel.errors import InputError, MissingExtraError, NotFoundError

MAX_BYTES = 128 << 20
_TOTAL_S, _CONNECT_S, _READ_S = 120, 5, 20
_CLOSE_S = 1.0
_REDIRECTS = 5
_PER_SERVER = 8
_WAITS_S = (0.2, 1.0, 4.0)
_AWAY_S = 60.0
"""Time for which a server that did not answer is not asked again."""
_FAILURES = 3
"""So many addresses of a server in a row fail until it counts as away."""
_BUSY = frozenset({408, 425, 429})
_away: dict[str, tuple[float, str]] = {}
_failed: dict[str, set[str]] = {}
"""Addresses of a server that failed since it last sent a file."""
_lock = threading.Lock()


class RefusedError(InputError):
    """An address is not allowed, or the server refuses to send what is there."""


class _UnansweredError(OSError):
    """A server was reached, but did not send the file."""


@dataclass(frozen=True)
class WebRules:
    """Addresses from which files may be downloaded.

    Args:
        trusted: A server that the user named: host and port; the others do not apply to it.
    """

    http: bool = False
    private: bool = False
    trusted: str = ""


def download(url: str, rules: WebRules) -> bytes:
    """Return the content of a file on a web server."""
    _check(url)
    server = server_of(url)
    with _lock:
        until, reason = _away.get(server, (0.0, ""))
    if time.monotonic() < until:
        raise InputError(reason)
    for wait_s in (*_WAITS_S, None):
        try:
            content = _run(url, rules)
        except OSError as error:
            if wait_s is None:
                raise _failure(url, server, error) from error
        else:
            _failed.pop(server, None)
            return content
        time.sleep(wait_s)
    raise AssertionError


def _failure(url: str, server: str, error: OSError) -> InputError:
    """Return the error for a file that no attempt could read; its server may be away."""
    reason = f"{server} does not answer: {' '.join(str(error).split()) or 'no answer'}"
    with _lock:
        failed = _failed.setdefault(server, set())
        failed.add(url)
        if not isinstance(error, _UnansweredError) or len(failed) >= _FAILURES:
            _away[server] = (time.monotonic() + _AWAY_S, reason)
    return InputError(reason)


def server_of(url: str) -> str:
    """Return host and port of an address, without credentials; empty if it has none."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _run(url: str, rules: WebRules) -> bytes:
    try:
        from aiohttp import (  # noqa: PLC0415 - an extra
            ClientConnectorError,
            ClientError,
            ClientPayloadError,
            ConnectionTimeoutError,
            ServerDisconnectedError,
        )
        from fsspec.asyn import get_loop, sync  # noqa: PLC0415 - costs 40 ms
    except ImportError as error:
        raise MissingExtraError("https://", "http") from error
    try:
        return cast("bytes", sync(get_loop(), _read, url, rules))
    except (ClientPayloadError, ServerDisconnectedError, TimeoutError) as error:
        kind = OSError if isinstance(error, ConnectionTimeoutError) else _UnansweredError
        raise kind(str(error)) from error
    except (ClientError, ValueError) as error:
        if isinstance(cause := error.__cause__ or error, OSError) and not _is_final(cause):
            kind = OSError if isinstance(error, ClientConnectorError) else _UnansweredError
            raise kind(str(error)) from error
        raise RefusedError(" ".join(str(error).split()) or type(error).__name__) from error


def _is_final(error: OSError) -> bool:
    """Tell whether no further attempt can succeed: an unknown host, or a bad certificate."""
    return isinstance(error, ssl.SSLCertVerificationError | RefusedError) or (
        isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
    )


async def _read(url: str, rules: WebRules) -> bytes:
    for _ in range(_REDIRECTS + 1):
        _check(url)
        parts = urlsplit(url)
        is_trusted = server_of(url) == rules.trusted
        if parts.scheme != "https" and not (is_trusted or rules.http):
            raise RefusedError(f"http://{server_of(url)} is not encrypted: use --allow-http")
        session = _session(asyncio.get_running_loop(), is_trusted or rules.private)
        if not (is_trusted or rules.private):
            _check_literal(parts)
        async with session.get(url, allow_redirects=False) as response:
            if response.status in {301, 302, 303, 307, 308} and "Location" in response.headers:
                url = urljoin(url, response.headers["Location"])
                continue
            if response.status >= 500 or response.status in _BUSY:
                raise _UnansweredError(f"HTTP {response.status}")
            if response.status in {404, 410}:
                raise NotFoundError(f"no file at {server_of(url)}{urlsplit(url).path}")
            if response.status != 200:
                raise RefusedError(f"HTTP {response.status} {response.reason}")
            content = bytearray()
            async for block in response.content.iter_any():
                content += block
                if len(content) > MAX_BYTES:
                    raise RefusedError(f"more than {MAX_BYTES >> 20} MiB")
            return bytes(content)
    raise RefusedError(f"more than {_REDIRECTS} redirects")


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        known = parts.hostname and parts.scheme in {"http", "https"} and (parts.port or 1)
    except ValueError as error:
        raise RefusedError(f"not a web address: {error}") from error
    if not known:
        raise RefusedError("not a web address")


@functools.cache
def _session(loop: asyncio.AbstractEventLoop, is_private: bool) -> Any:
    """Return a session of the running loop, whose connections are used again."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector  # noqa: PLC0415 - an extra

    connector = TCPConnector(
        limit_per_host=_PER_SERVER, socket_factory=None if is_private else _public_socket
    )
    timeout = ClientTimeout(total=_TOTAL_S, sock_connect=_CONNECT_S, sock_read=_READ_S)
    session = ClientSession(connector=connector, timeout=timeout, trust_env=True)
    atexit.register(_close, loop, session)
    return session


def _close(loop: asyncio.AbstractEventLoop, session: Any) -> None:
    """Close a session, which would complain at the end of the process."""
    with contextlib.suppress(Exception):
        asyncio.run_coroutine_threadsafe(session.close(), loop).result(_CLOSE_S)


def _public_socket(address: Any) -> socket.socket:
    """Return a socket for an address that was looked up, if it is public.

    Checked for each connection, so that a name cannot mean another address later.
    """
    family, kind, protocol, _, place = address
    if not _is_public(place[0]) and place[0] not in _proxies():
        raise RefusedError(f"{place[0]} is a private address: use --allow-private")
    return socket.socket(family, kind, protocol)


def _check_literal(parts: SplitResult) -> None:
    """Check an address without a name, which a proxy would connect to."""
    host = parts.hostname or ""
    is_proxied = parts.scheme in getproxies() and not proxy_bypass(host)
    if is_proxied and (host == "localhost" or not _is_public(host, default=True)):
        raise RefusedError(f"{host} is a private address: use --allow-private")


def _is_public(host: str, *, default: bool = False) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return default
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_global and not mapped.is_multicast


@functools.cache
def _proxies() -> frozenset[str]:
    """Return the addresses of the proxies of the environment."""
    found = set()
    for url in getproxies().values():
        try:
            host = urlsplit(url).hostname
            found |= {str(each[4][0]) for each in socket.getaddrinfo(host, None)} if host else set()
        except (OSError, ValueError):
            continue
    return frozenset(found)
