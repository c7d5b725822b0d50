"""The middleware alone: limits, discretion, and applications that do not behave."""

from __future__ import annotations

import asyncio
import json

import pytest

from timonel.serving.auth import AccessSettings, JwtSettings, LimitSettings
from timonel.serving.auth.asgi import AccessMiddleware, cut_listing, is_within
from timonel.serving.auth.control import AccessControl
from timonel.serving.auth.policy import PRINCIPAL, Principal
from timonel.serving.settings.auth import parse_grant


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def guarded(app, clock=None, **settings):
    control = AccessControl(AccessSettings(**settings), clock=clock or Clock())
    return AccessMiddleware(app, control)


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


def test_each_client_has_its_rate():
    clock = Clock()
    limits = LimitSettings(principal_rate="60/min:2")

    async def run():
        app = guarded(answer, clock, limits=limits)
        assert [(await ask(app))[0] for _ in range(3)] == [200, 200, 429]
        status, body, headers = await ask(app)
        assert (status, headers[b"retry-after"]) == (429, b"1")
        assert json.loads(body) == {"error": "too many requests from this client"}
        assert (await ask(app, client="10.0.0.2"))[0] == 200
        assert (await ask(app, "/livez", method="GET"))[0] == 200
        clock.now = 1.0
        assert [(await ask(app))[0] for _ in range(2)] == [200, 429]

    asyncio.run(run())


def test_each_model_has_its_rate():
    async def run():
        app = guarded(answer, limits=LimitSettings(model_rate="1/h"))
        assert [(await ask(app, client=str(n)))[0] for n in range(2)] == [200, 429]
        status, body, headers = await ask(app)
        assert (status, headers[b"retry-after"]) == (429, b"3600")
        assert json.loads(body) == {"error": "too many requests to this model"}
        assert (await ask(app, "/v1/models/other:predict"))[0] == 200

    asyncio.run(run())


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
        assert json.loads(body) == {"error": "too many requests at once"}
        go.set()
        assert (await first)[0] == 200
        with pytest.raises(RuntimeError):
            await second
        assert [task[0] for task in [await ask(app), await ask(app)]] == [200, 200]

    asyncio.run(run())


def test_a_body_that_is_too_large_ends_the_request_whatever_the_application_does():
    async def catches_everything(scope, receive, send):
        received = [await receive(), await receive()]
        assert received[-1]["type"] == "http.disconnect"
        await answer(scope, receive, send, 500, b"mine")

    async def run():
        app = guarded(catches_everything, limits=LimitSettings(max_body=5))
        assert (await ask(app, parts=(b"123", b"456", b"7")))[0] == 413

    asyncio.run(run())


def test_why_a_closed_server_is_not_ready_is_its_own_business(tmp_path):
    async def unready(scope, receive, send):
        await answer(scope, receive, send, 503, b"not loaded: secret-model")

    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "A" * 43}]}))
    jwt = JwtSettings(issuer="https://x", audience="y", jwks=str(path))

    async def run():
        is_open = guarded(unready, limits=LimitSettings(max_requests=9))
        assert (await ask(is_open, "/readyz"))[1] == b"not loaded: secret-model"
        assert (await ask(guarded(unready, jwt=jwt), "/readyz"))[:2] == (503, b"not ready")
        strict = guarded(unready, jwt=jwt, open_health=False)
        assert (await ask(strict, "/readyz"))[0] == 401

    asyncio.run(run())


def test_an_open_server_names_no_principal():
    seen = []

    async def look(scope, receive, send):
        seen.append(PRINCIPAL.get())
        await answer(scope, receive, send)

    asyncio.run(ask(guarded(look, limits=LimitSettings(max_requests=1))))
    assert seen == [None]


def test_a_listing_of_another_form_is_not_shown():
    reader = Principal("x", (parse_grant("status:a*"),))
    assert json.loads(cut_listing(b'[{"name":"ab"},{"name":"b"}]', reader)) == [{"name": "ab"}]
    for other in (b'"models"', b'{"names": ["b"]}', b"not json"):
        with pytest.raises(ValueError):
            cut_listing(other, reader)


@pytest.mark.parametrize(
    ("headers", "within"),
    [
        ([(b"content-length", b"5")], True),
        ([(b"host", b"h"), (b"content-length", b"0")], True),
        ([(b"content-length", b"6")], False),
        ([(b"content-length", b"5"), (b"content-length", b"5")], False),
        ([(b"content-length", b"-1")], False),
        ([(b"content-length", b"")], False),
        ([], False),
        ([(b"transfer-encoding", b"chunked")], False),
        ([(b"content-length", b"5"), (b"transfer-encoding", b"chunked")], False),
        ([(b"content-encoding", b"gzip"), (b"content-length", b"5")], False),
    ],
)
def test_only_a_body_that_is_declared_and_comes_as_it_is_need_not_be_counted(headers, within):
    assert is_within(headers, 5) is within


def test_who_is_let_through_unwatched_is_answered_by_the_application_itself():
    async def send(message):
        raise AssertionError("the application was to be handed on as it is")

    async def receive():
        raise AssertionError("the application was to be handed on as it is")

    seen = []

    async def app(*given):
        seen.append(given)

    scope = {"type": "http", "headers": [(b"content-length", b"5")]}
    asyncio.run(guarded(app, limits=LimitSettings(max_body=5))(scope, receive, send))
    assert seen == [(scope, receive, send)]
