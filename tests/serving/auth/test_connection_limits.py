"""Connections without a socket: what is told of one that is lost."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.serving.transport import Transport
from timonel.serving.auth.connection_limits import http_protocol
from timonel.serving.settings.auth import LimitSettings


@pytest.mark.parametrize("together", [1, 3])
def test_a_lost_connection_is_told_to_the_request_that_is_answered(together, caplog):
    asked, told = [], []

    async def app(scope, receive, send):
        asked.append(scope["path"])
        if scope["path"] != "/slow":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await receive()
        told.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    async def connect():
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        kind = http_protocol(LimitSettings())
        protocol = kind(config, ServerState(), {}, asyncio.get_running_loop())
        transport = Transport()
        protocol.connection_made(transport)
        protocol.data_received(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.01)
        protocol.data_received(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" * together)
        await asyncio.sleep(0.01)
        transport.close()
        protocol.connection_lost(None)
        await asyncio.sleep(0.01)
        assert not protocol.tasks

    asyncio.run(connect())
    assert asked == ["/first", "/slow"]
    assert told == ["http.disconnect"]
    assert not caplog.records


OFFER = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("body", [b"", b"twelve bytes"])
def test_an_offer_of_another_protocol_is_ignored(size, body):
    seen = []

    async def app(scope, receive, send):
        content = b""
        more = True
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)
        seen.append((scope["method"], scope["path"], content, dict(scope["headers"])[b"host"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def connect():
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        protocol = http_protocol(LimitSettings())(
            config, ServerState(), {}, asyncio.get_running_loop()
        )
        transport = Transport()
        protocol.connection_made(transport)
        request = b"POST /a HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b"
        data = request % (OFFER, len(body), body) + request % (b"", 4, b"next")
        for start in range(0, len(data), size):
            protocol.data_received(data[start : start + size])
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        transport.close()
        protocol.connection_lost(None)
        await asyncio.sleep(0.01)

    asyncio.run(connect())
    assert seen == [("POST", "/a", body, b"x"), ("POST", "/a", b"next", b"x")]
