"""The middleware alone."""

from __future__ import annotations

import asyncio
import json

import pytest

from timonel.serving.auth.asgi import ANONYMOUS, AccessMiddleware
from timonel.serving.auth.control import AccessControl
from timonel.serving.auth.keys import change_entries
from timonel.serving.settings.auth import AccessSettings, LimitSettings


def guarded(app, **settings):
    return AccessMiddleware(app, AccessControl(AccessSettings(**settings)))


async def ask(app, path="/v1/models/m:predict", *, client="10.0.0.1", method="POST", parts=(b"",)):
    sent = []
    messages = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
        for i, part in enumerate(parts)
    ]

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "client": (client, 1),
    }
    await app(scope, receive, send)
    start, *bodies = sent
    body = b"".join(message["body"] for message in bodies)
    return start["status"], body, dict(start["headers"])


async def answer(scope, receive, send, status=200, body=b"{}"):
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def test_no_more_requests_at_once_than_allowed():
    async def run():
        go = asyncio.Event()

        async def slow(scope, receive, send):
            await go.wait()
            if scope["path"].endswith("bad:predict"):
                raise RuntimeError("a defect")
            await answer(scope, receive, send)

        app = guarded(slow, limits=LimitSettings(max_requests=2))
        first = asyncio.create_task(ask(app))
        second = asyncio.create_task(ask(app, "/v1/models/bad:predict"))
        await asyncio.sleep(0)
        status, body, headers = await ask(app)
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert headers[b"x-timonel-not-started"] == b"1"
        assert json.loads(body) == {"error": "too many requests at once"}
        go.set()
        assert (await first)[0] == 200
        with pytest.raises(RuntimeError):
            await second
        assert [task[0] for task in [await ask(app), await ask(app)]] == [200, 200]

    asyncio.run(run())


def test_a_closed_server_names_no_model_to_those_without_a_key(tmp_path):
    change_entries(tmp_path / "keys.json", lambda _: [])
    seen = []

    async def look(scope, receive, send):
        seen.append(scope.get(ANONYMOUS))
        await answer(scope, receive, send)

    async def run():
        await ask(guarded(look, limits=LimitSettings(max_requests=9)), "/readyz")
        await ask(guarded(look, api_keys=str(tmp_path / "keys.json")), "/readyz")
        assert (await ask(guarded(look, api_keys=str(tmp_path / "keys.json"))))[0] == 401

    asyncio.run(run())
    assert seen == [None, True]


def test_an_open_server_hands_requests_on_as_they_are():
    async def unused(*_):
        raise AssertionError("the application was to be handed on as it is")

    seen = []

    async def app(*given):
        seen.append(given)

    scope = {"type": "http", "method": "POST", "raw_path": b"/", "headers": []}
    asyncio.run(guarded(app)(scope, unused, unused))
    assert seen == [(scope, unused, unused)]
