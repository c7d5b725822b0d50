from __future__ import annotations

import asyncio
from typing import Any

from timonel.endpoints.control.activator import Activator
from timonel.endpoints.gateway.parts import REFUSED, SERVICE_HEADER, TIMED_OUT


class Question:
    """One question of Envoy."""

    def __init__(self, activator: Activator, service: str) -> None:
        self.sent: list[Any] = []
        self._gone = asyncio.Event()
        headers = [(SERVICE_HEADER.encode(), service.encode())]
        scope = {"type": "http", "headers": headers}
        self.task = asyncio.ensure_future(activator(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    def leave(self) -> None:
        self._gone.set()

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_requests_wait_until_they_are_released() -> None:
    async def run() -> None:
        noticed: list[str] = []
        activator = Activator(noticed.append)
        activator.configure({"a-v1": (10, 60.0), "b-v1": (10, 60.0)})
        questions = [Question(activator, "a-v1") for _ in range(3)]
        other = Question(activator, "b-v1")
        await settle()
        assert activator.held == {"a-v1": 3, "b-v1": 1}
        assert noticed == ["a-v1"] * 3 + ["b-v1"]
        activator.release("a-v1")
        await asyncio.gather(*(each.task for each in questions))
        assert [each.status for each in questions] == [200] * 3
        assert activator.held == {"b-v1": 1}
        assert other.status is None
        late = Question(activator, "a-v1")  # it waits for the next release
        await settle()
        assert activator.held == {"a-v1": 1, "b-v1": 1}
        for service in ("a-v1", "b-v1"):
            activator.release(service)
        await asyncio.gather(late.task, other.task)

    asyncio.run(run())


def test_requests_wait_for_what_a_new_control_plane_knows() -> None:
    async def run() -> None:
        activator = Activator(lambda _: None)
        known, unknown = Question(activator, "a-v1"), Question(activator, "x-v1")
        await settle()
        assert (known.status, unknown.status) == (None, None)
        activator.configure({"a-v1": (10, 60.0)})
        await unknown.task
        assert unknown.status == REFUSED
        assert activator.held == {"a-v1": 1}
        activator.release("a-v1")
        await known.task
        assert known.status == 200

    asyncio.run(run())


def test_requests_at_a_gateway_that_ends_are_refused() -> None:
    async def run() -> None:
        activator = Activator(lambda _: None)
        activator.configure({"a-v1": (10, 60.0)})
        waiting = Question(activator, "a-v1")
        begins = Activator(lambda _: None)
        early = Question(begins, "a-v1")
        await settle()
        activator.close()
        begins.close()
        late = Question(activator, "a-v1")
        await asyncio.gather(waiting.task, late.task, early.task)
        assert (waiting.status, late.status, early.status) == (REFUSED, REFUSED, REFUSED)

    asyncio.run(run())


def test_requests_to_a_removed_service_are_refused_while_they_wait() -> None:
    async def run() -> None:
        activator = Activator(lambda _: None)
        activator.configure({"a-v1": (10, 60.0), "b-v1": (10, 60.0)})
        gone, other = Question(activator, "a-v1"), Question(activator, "b-v1")
        await settle()
        activator.configure({"b-v1": (10, 60.0)})
        await gone.task
        assert gone.status == REFUSED
        assert b"no such version" in gone.sent[1]["body"]
        assert activator.held == {"b-v1": 1}
        activator.release("b-v1")
        await other.task
        assert other.status == 200

    asyncio.run(run())


def test_requests_to_a_service_that_cannot_start_do_not_wait() -> None:
    async def run() -> None:
        activator = Activator(lambda _: None)
        limits = {"a-v1": (10, 60.0), "b-v1": (10, 60.0)}
        activator.configure(limits)
        waiting, other = Question(activator, "a-v1"), Question(activator, "b-v1")
        await settle()
        activator.configure(limits, {"a-v1": "no such file"})
        late = Question(activator, "a-v1")
        await asyncio.gather(waiting.task, late.task)
        for each in (waiting, late):
            assert each.status == REFUSED
            assert each.sent[1]["body"] == b'{"error": "no such file"}'
            assert (b"retry-after", b"1") in each.sent[0]["headers"]
        assert activator.held == {"b-v1": 1}
        activator.configure(limits)
        again = Question(activator, "a-v1")
        await settle()
        assert activator.held == {"a-v1": 1, "b-v1": 1}
        for service in limits:
            activator.release(service)
        await asyncio.gather(other.task, again.task)
        assert (other.status, again.status) == (200, 200)

    asyncio.run(run())


def test_too_many_and_unknown_ones_are_refused() -> None:
    async def run() -> None:
        activator = Activator(lambda _: None)
        activator.configure({"a-v1": (1, 60.0)})
        first = Question(activator, "a-v1")
        await settle()
        second, unknown = Question(activator, "a-v1"), Question(activator, "x-v1")
        await asyncio.gather(second.task, unknown.task)
        assert (second.status, unknown.status) == (REFUSED, REFUSED)
        assert (b"retry-after", b"1") in second.sent[0]["headers"]
        activator.release("a-v1")
        await first.task
        assert first.status == 200

    asyncio.run(run())


def test_a_wait_has_an_end() -> None:
    async def run() -> None:
        activator = Activator(lambda _: None)
        activator.configure({"a-v1": (1, 0.01)})
        question = Question(activator, "a-v1")
        await question.task
        assert question.status == TIMED_OUT
        assert activator.held == {}

    asyncio.run(run())


def test_a_client_that_leaves_is_forgotten() -> None:
    async def run() -> None:
        activator = Activator(lambda _: None)
        activator.configure({"a-v1": (1, 60.0)})
        question = Question(activator, "a-v1")
        await settle()
        question.leave()
        await question.task
        assert question.status is None
        assert activator.held == {}

    asyncio.run(run())
