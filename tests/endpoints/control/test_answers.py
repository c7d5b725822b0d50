"""Answers of replicas: read once each, also of those that restart or are away."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.waiting import until
from timonel.endpoints.control.answers import AnswerReader, parse_answers
from timonel.processes.ports import PortReservation
from timonel.serving.inference.context import Correlation, Observation
from timonel.serving.status import Code
from timonel.serving.telemetry.answer_log import AnswerLog
from timonel.serving.telemetry.answers import Answer, summarize

OUTPUTS = {"y": np.array([1.0])}


def record(log: AnswerLog, secret: str) -> Answer:
    observation = Observation("REST", "predict", "m", 0.0, Correlation(comparison=secret))
    observation.outputs = [OUTPUTS]
    before = log.since(b"")
    log.record(observation, Code.OK)
    until(lambda: log.since(b"") != before)
    return summarize(secret, [OUTPUTS])


def test_each_answer_is_read_once() -> None:
    log = AnswerLog()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + log.since(target.partition(b"?")[2]))
        writer.close()

    async def read() -> None:
        nonlocal log
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        reader = AnswerReader()
        with PortReservation(1) as silent:
            services = {"v1": {"a.0": address}, "v2": {"b.0": next(iter(silent))}}
            first = [record(log, "one"), record(log, "two")]
            assert await reader.read(services) == {"v1": first, "v2": []}
            assert await reader.read(services) == {"v1": [], "v2": []}
            second = [record(log, "three")]
            assert await reader.read(services) == {"v1": second, "v2": []}
        log = AnswerLog()
        third = [record(log, "four")]
        assert await reader.read({"v1": {"a.1": address}}) == {"v1": third}
        server.close()

    asyncio.run(read())


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"next": 1, "answers": [["a", "b", "c", "d"]]}']
)
def test_other_pages_are_no_answers(body: bytes) -> None:
    assert parse_answers(body) is None
