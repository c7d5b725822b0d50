"""Health of the control plane over HTTP, and what its peers read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from timonel.endpoints.control.health import ADMIN_PATH, HELD_PATH, Health, parse_held


def ask(health: Health, path: str, query: bytes = b"") -> tuple[int, bytes]:
    sent: list[Mapping[str, Any]] = []

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "query_string": query, "headers": []}
    asyncio.run(health(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
def test_it_is_ready_with_its_gateway(is_ready: bool, status: int) -> None:
    health = Health(lambda: is_ready, dict, lambda _: None)
    assert ask(health, "/readyz")[0] == status
    assert ask(health, "/livez")[0] == 200
    assert ask(health, "/other")[0] == 404


def test_peers_read_what_it_holds() -> None:
    health = Health(lambda: True, lambda: {"digits-v1": 3}, lambda _: None)
    assert parse_held(ask(health, HELD_PATH)[1]) == {"digits-v1": 3}


@pytest.mark.parametrize("body", [None, b"", b"<html>", b"{}"])
def test_a_peer_that_does_not_answer_holds_nothing(body: bytes | None) -> None:
    assert parse_held(body) == {}


def test_it_passes_on_the_statistics_of_envoy_and_nothing_else() -> None:
    asked: list[str] = []

    def admin(path: str) -> bytes | None:
        asked.append(path)
        return json.dumps({"stats": []}).encode()

    health = Health(lambda: True, dict, admin)
    status, body = ask(health, f"{ADMIN_PATH}/stats", b"format=json&filter=x")
    assert (status, json.loads(body)) == (200, {"stats": []})
    assert ask(health, f"{ADMIN_PATH}/quitquitquit")[0] == 404
    assert asked == ["/stats?format=json&filter=x"]


def test_statistics_without_envoy_are_an_error() -> None:
    health = Health(lambda: True, dict, lambda _: None)
    assert ask(health, f"{ADMIN_PATH}/stats")[0] == 503
