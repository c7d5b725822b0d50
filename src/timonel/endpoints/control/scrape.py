"""Read the load of replicas from their metrics."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from timonel.processes.ports import connect
from timonel.serving.settings.server import METRICS_PATH

_TIMEOUT_S = 1.0
_CONCURRENCY = b"timonel_request_concurrency_seconds_total "
_REQUESTS = b"timonel_requests_total{"
_CPU = b"timonel_cpu_seconds_total{"
_MEMORY = b"timonel_memory_bytes{"
_NO_API = b'api=""'
"""Label of requests that ask no model, such as these."""
AVERAGE_S = 15.0
"""Time over which single replicas are measured, as by Kubernetes' metrics-server."""


@dataclass(frozen=True)
class Totals:
    """What a replica has counted since its start.

    Attributes:
        at: Time of reading in seconds, steady.
        request_s: Requests in flight, integrated over time.
        requests: Answered requests.
        cpu_s: CPU time of all processes of the replica.
        memory_bytes: Memory of all processes of the replica, at present.
    """

    at: float
    request_s: float
    requests: float
    cpu_s: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True)
class ReplicaLoad:
    """Average load of replicas between two readings.

    Attributes:
        concurrency: Requests in flight.
        rate: Requests per second.
        cpus: CPUs in use.
        memory_bytes: Memory at the second reading.
    """

    concurrency: float = 0.0
    rate: float = 0.0
    cpus: float = 0.0
    memory_bytes: float = 0.0

    def __add__(self, other: ReplicaLoad) -> ReplicaLoad:
        return ReplicaLoad(
            self.concurrency + other.concurrency,
            self.rate + other.rate,
            self.cpus + other.cpus,
            self.memory_bytes + other.memory_bytes,
        )


class LoadReader:
    """Turns the totals of replicas into loads."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[Totals]] = {}

    async def read(self, replicas: Mapping[str, str]) -> dict[str, ReplicaLoad]:
        """Return loads since the previous reading by replica.

        Replicas that did not answer, or were read once, are missing.

        Args:
            replicas: REST addresses by replica and start.
        """
        found = await asyncio.gather(*(read_totals(address) for address in replicas.values()))
        self._readings = {name: known for name, known in self._readings.items() if name in replicas}
        loads = {}
        for name, totals in zip(replicas, found, strict=True):
            if totals is None:
                continue
            readings = self._readings.setdefault(name, deque())
            if readings:
                loads[name] = _between(readings[-1], totals)
            readings.append(totals)
            while len(readings) > 2 and totals.at - readings[1].at >= AVERAGE_S:
                readings.popleft()
        return loads

    def average(self, replica: str) -> tuple[float, ReplicaLoad] | None:
        """Return the load of a replica over the last `AVERAGE_S`.

        Returns:
            The age of the first reading in seconds, and the load; None if the replica was read
            less than twice, or not lately.
        """
        readings, now = self._readings.get(replica, deque()), time.monotonic()
        if len(readings) < 2 or now - readings[-1].at > AVERAGE_S:
            return None
        return now - readings[0].at, _between(readings[0], readings[-1])


def _between(before: Totals, after: Totals) -> ReplicaLoad:
    seconds = max(1e-3, after.at - before.at)
    # A restarted replica counts from zero.
    return ReplicaLoad(
        max(0.0, after.request_s - before.request_s) / seconds,
        max(0.0, after.requests - before.requests) / seconds,
        max(0.0, after.cpu_s - before.cpu_s) / seconds,
        after.memory_bytes,
    )


async def read_totals(address: str) -> Totals | None:
    """Return the totals of the replica at an address; None if it fails."""
    body = await get(address, METRICS_PATH)
    return None if body is None else parse_totals(body, time.monotonic())


def parse_totals(body: bytes, at: float) -> Totals | None:
    """Parse metrics in Prometheus' text format; None if they are not those of a model server."""
    request_s, requests, cpu_s, memory_bytes = None, 0.0, 0.0, 0.0
    try:
        for line in body.splitlines():
            if line.startswith(_REQUESTS) and _NO_API not in line:
                requests += _value(line)
            elif line.startswith(_CPU):
                cpu_s += _value(line)
            elif line.startswith(_MEMORY):
                memory_bytes += _value(line)
            elif line.startswith(_CONCURRENCY):
                request_s = float(line.split()[1])
    except (ValueError, IndexError):
        return None
    if request_s is None:
        return None
    return Totals(at, request_s, requests, cpu_s, memory_bytes)


def _value(line: bytes) -> float:
    return float(line.rpartition(b"} ")[2].split()[0])


async def get(address: str, path: str) -> bytes | None:
    """Return the response of a replica to a GET request; None if it fails."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await connect(address)
            try:
                request = f"GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
                return body if head.split(b" ", 2)[1:2] == [b"200"] else None
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return None
