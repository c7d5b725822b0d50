"""Read the answers to compared requests from replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import orjson

from timonel.endpoints.control.scrape import get
from timonel.serving.settings.server import ANSWERS_PATH
from timonel.serving.telemetry.answers import Answer


class AnswerReader:
    """Reads the new answers of replicas."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    async def read(self, services: Mapping[str, Mapping[str, str]]) -> dict[str, list[Answer]]:
        """Return the answers since the previous reading by service.

        Args:
            services: REST addresses by replica and start, by service.
        """
        replicas = [
            (service, replica, address)
            for service, own in services.items()
            for replica, address in own.items()
        ]
        bodies = await asyncio.gather(
            *(get(at, f"{ANSWERS_PATH}?since={self._next.get(key, 0)}") for _, key, at in replicas)
        )
        known = {key for _, key, _ in replicas}
        self._next = {key: number for key, number in self._next.items() if key in known}
        found: dict[str, list[Answer]] = {service: [] for service in services}
        for (service, key, _), body in zip(replicas, bodies, strict=True):
            parsed = parse_answers(body) if body is not None else None
            if parsed is not None:
                self._next[key], answers = parsed
                found[service] += answers
        return found


def parse_answers(body: bytes) -> tuple[int, list[Answer]] | None:
    """Parse a page of answers; None if it is not one.

    Returns:
        The number to continue from, and the answers.
    """
    try:
        page = orjson.loads(body)
        return int(page["next"]), [Answer(*map(str, each)) for each in page["answers"]]
    except (ValueError, TypeError, KeyError):
        return None
