"""Refuse requests that a browser sends for another site. Pure.

A server on a loopback address without keys trusts every client that can reach it, and any web page
that a user of the machine opens can make the browser send requests to it:

- *DNS rebinding*: the page's own host name is made to resolve to 127.0.0.1. The browser takes the
  server for the page's origin and lets the page read the responses. The ``Host`` header still has
  the page's host name.
- *Cross-site requests*: the page sends a form or a ``text/plain`` body. It cannot read the
  response, but the model computes. The ``Origin`` header has the page's origin.
"""

from __future__ import annotations

import functools
import ipaddress

from timonel.serving.asgi import Headers, header

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def hosts_for(address: str, host: str, allowed: tuple[str, ...]) -> frozenset[str] | None:
    """Return the accepted host names besides loopback names; None for any.

    Args:
        address: The IP address, or path of a Unix socket, that the server listens on.
    """
    if not is_loopback(address):
        return None
    return frozenset(name.lower() for name in (host, *allowed))


def refused(
    method: str, headers: Headers, hosts: frozenset[str] | None, *, cors: bool = False
) -> str | None:
    """Return the reason to refuse a request; None if it is accepted.

    ``headers`` have lower-case names; ``hosts`` are those besides loopback names, None for any.
    """
    host = header(headers, b"host")
    if not is_host_allowed(host, hosts):
        return (
            f"This server does not answer requests for the host {_shown(host)}. "
            "Use localhost, or start it with --allow-host."
        )
    origin = header(headers, b"origin")
    if cors or not origin or method in _SAFE_METHODS:
        return None
    site = origin.partition(b"://")[2].lower()
    # A proxy may have replaced the Host header, but not the origin of its own pages. It has the
    # usual port; another port of this machine is another origin.
    is_proxys = site.decode("latin-1") in (hosts or ()) and not is_host_allowed(site, frozenset())
    if site == host.lower() or is_proxys:
        return None
    return f"Cross-origin request from {_shown(origin)} refused. Use --allow-host if it is yours."


@functools.lru_cache(256)
def is_host_allowed(host: bytes, hosts: frozenset[str] | None) -> bool:
    """Whether a ``Host`` header names this server, or is missing: browsers always send it."""
    if hosts is None or not host:
        return True
    name = _name(host.decode("latin-1").lower()).removesuffix(".")
    return name in hosts or name.endswith(".localhost") or is_loopback(name)


def _name(authority: str) -> str:
    """Return the host of ``host:port``; IPv6 addresses without brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def is_address(name: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Return whether a name or address is of this machine alone: ``localhost``, ``127.0.0.2``."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"  # resolvers may ask others for names below it


def _shown(value: bytes) -> str:
    return value[:80].decode("latin-1")
