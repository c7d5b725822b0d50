"""Read the load of replicas from their metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from timonel.serving.settings.server import METRICS_PATH

_TIMEOUT_S = 1.0
_CONCURRENCY = b"timonel_request_concurrency_seconds_total "
_REQUESTS = b"timonel_requests_total{"
_NO_API = b'api=""'
"""Label of requests that ask no model, such as these."""


@dataclass(frozen=True)
class Totals:
    """What a replica has counted since its start.

    Attributes:
        at: Time of reading in seconds, steady.
        request_s: Requests in flight, integrated over time.
        requests: Answered requests.
    """

    at: float
    request_s: float
    requests: float


@dataclass(frozen=True)
class Load:
    """Average load of replicas between two readings.

    Attributes:
        concurrency: Requests in flight.
        rate: Requests per second.
    """

    concurrency: float = 0.0
    rate: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(self.concurrency + other.concurrency, self.rate + other.rate)


class LoadReader:
    """Turns the totals of replicas into loads since the previous reading."""

    def __init__(self) -> None:
        self._before: dict[str, Totals] = {}

    async def read(self, replicas: Mapping[str, str]) -> dict[str, Load]:
        """Return loads by replica; those that did not answer, or were read once, are missing.

        Args:
            replicas: REST addresses by replica and start.
        """
        found = await asyncio.gather(*(read_totals(address) for address in replicas.values()))
        now = {name: each for name, each in zip(replicas, found, strict=True) if each is not None}
        loads = {
            name: _between(self._before[name], totals)
            for name, totals in now.items()
            if name in self._before
        }
        self._before = {
            name: each for name, each in {**self._before, **now}.items() if name in replicas
        }
        return loads


def _between(before: Totals, after: Totals) -> Load:
    seconds = max(1e-3, after.at - before.at)
    # A restarted replica counts from zero.
    return Load(
        max(0.0, after.request_s - before.request_s) / seconds,
        max(0.0, after.requests - before.requests) / seconds,
    )


async def read_totals(address: str) -> Totals | None:
    """Return the totals of the replica at an address (``host:port``); None if it fails."""
    body = await _get(address, METRICS_PATH)
    return None if body is None else parse_totals(body, time.monotonic())


def parse_totals(body: bytes, at: float) -> Totals | None:
    """Parse metrics in Prometheus' text format; None if they are not those of a model server."""
    request_s, requests = None, 0.0
    try:
        for line in body.splitlines():
            if line.startswith(_REQUESTS) and _NO_API not in line:
                requests += float(line.rpartition(b"} ")[2].split()[0])
            elif line.startswith(_CONCURRENCY):
                request_s = float(line.split()[1])
    except (ValueError, IndexError):
        return None
    return None if request_s is None else Totals(at, request_s, requests)


async def _get(address: str, path: str) -> bytes | None:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                request = f"GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
                return body if head.split(b" ", 2)[1:2] == [b"200"] else None
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return None
