from __future__ import annotations

import asyncio
import time

import pytest

from timonel.endpoints.control.scrape import LoadReader, ReplicaLoad, Totals, parse_totals
from timonel.processes.ports import PortReservation

METRICS = b"""# TYPE timonel_requests_total counter
timonel_requests_total{api="",code="OK",model="digits"} 99.0
timonel_requests_total{api="predict",code="OK",model="digits"} 3.0
timonel_requests_total{api="predict",code="INTERNAL",model="a} b"} 2.0
timonel_request_concurrency_seconds_total 12.5
timonel_memory_bytes{process="server"} 1000.0
timonel_memory_bytes{process="compute"} 24.0
timonel_cpu_seconds_total{process="server"} 1.5
timonel_cpu_seconds_total{process="compute"} 2.0
"""


def test_totals_of_a_server() -> None:
    assert parse_totals(METRICS, 7.0) == Totals(7.0, 12.5, 5.0, 3.5, 1024.0)


@pytest.mark.parametrize("body", [b"", b"hello", b"timonel_request_concurrency_seconds_total x\n"])
def test_other_answers_are_no_totals(body: bytes) -> None:
    assert parse_totals(body, 0.0) is None


def test_loads_are_differences() -> None:
    async def read() -> list[dict[str, ReplicaLoad]]:
        counts = [(0.0, 0), (4.0, 10), (1.0, 1)]
        begun = time.monotonic()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            request_s, requests = counts.pop(0)
            writer.write(
                b"HTTP/1.1 200 OK\r\n\r\n"
                b'timonel_requests_total{api="predict"} %d\n'
                b"timonel_request_concurrency_seconds_total %f\n" % (requests, request_s)
            )
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader = LoadReader()
        with PortReservation(1) as silent:
            replicas = {"a": f"127.0.0.1:{port}", "b": next(iter(silent))}
            found = [await reader.read(replicas) for _ in range(3)]
        took = time.monotonic() - begun
        server.close()
        # The rates depend on the time between the readings, which is at most all of it.
        assert found[1]["a"].rate >= 10 / took
        assert found[1]["a"].concurrency >= 4 / took
        return found

    first, second, third = asyncio.run(read())
    assert first == {}
    assert list(second) == ["a"]
    # It was restarted, and counts from zero.
    assert third == {"a": ReplicaLoad(0.0, 0.0)}
