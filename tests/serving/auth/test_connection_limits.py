"""Connections without a socket: what is told of one that is lost."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.serving.transport import Transport
from timonel.serving.auth.connection_limits import http_protocol
from timonel.serving.settings.auth import LimitSettings


def connected(app):
    """Return the protocol of a new connection to an application, and its transport."""
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    config.load()
    kind = http_protocol(LimitSettings())
    protocol, transport = kind(config, ServerState(), {}, asyncio.get_running_loop()), Transport()
    protocol.connection_made(transport)
    return protocol, transport


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
        protocol, transport = connected(app)
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


@pytest.mark.parametrize(
    "before", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"]
)
@pytest.mark.parametrize("head", [b"CONNECT a HTTP/1.1\r\n\r\n", b"CONNECT a:1 HTTP/1.0\r\n\r\n"])
def test_a_request_for_a_proxy_is_a_bad_one(before, head):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def connect():
        protocol, transport = connected(app)
        protocol.data_received(before + head)
        await asyncio.sleep(0.01)
        assert transport.closed
        return transport.written

    sent = asyncio.run(connect())
    assert sent.startswith(b"HTTP/1.1 200" if before else b"HTTP/1.1 400")


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
        protocol, transport = connected(app)
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


@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_trailers_are_no_headers(size):
    """They would come after what is decided by headers, and fill the memory without a limit."""
    seen = []

    async def app(scope, receive, send):
        content, more = b"", True
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)
        seen.append((content, scope["headers"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def connect():
        protocol, transport = connected(app)
        request = CHUNKED + b"2\r\nok\r\n0\r\n%b\r\n"
        data = request % (b"X-API-Key: late\r\nContent-Encoding: gzip\r\n" * 10) + request % b""
        for start in range(0, len(data), size):
            protocol.data_received(data[start : start + size])
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        transport.close()
        protocol.connection_lost(None)
        await asyncio.sleep(0.01)

    asyncio.run(connect())
    head = [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
    assert seen == [(b"ok", head), (b"ok", head)]


HEAD = b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
GOOD = b"".join(HEAD % number + b"ok" for number in range(3))
CHUNKED = b"POST /bad HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"\x16\x03\x01junk", id="no HTTP"),
        pytest.param(CHUNKED + b"zz\r\n", id="no chunk"),
        pytest.param(b"GET /" + b"x" * 90_000, id="long head"),
    ],
)
def test_requests_before_a_bad_one_are_answered_in_order(size, bad):
    asked = []

    async def app(scope, receive, send):
        asked.append(scope["path"])
        await receive()
        await asyncio.sleep(0)
        headers = [(b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": scope["path"][1:].encode()})

    async def connect():
        protocol, transport = connected(app)
        data = GOOD + bad
        for start in range(0, len(data), size):
            if not transport.closed:
                protocol.data_received(data[start : start + size])
        for _ in range(100):
            await asyncio.sleep(0)
        assert transport.closed
        protocol.connection_lost(None)
        return transport.written.split(b"HTTP/1.1 ")[1:]

    answers = asyncio.run(connect())
    assert asked == ["/0", "/1", "/2"]
    assert [(each[:3], each[-1:]) for each in answers] == [
        (b"200", b"0"),
        (b"200", b"1"),
        (b"200", b"2"),
    ]
    assert b"connection: close" in answers[2]


def test_the_rest_of_a_refused_body_takes_nothing_from_other_connections():
    asked = []

    async def refusing(scope, receive, send):
        asked.append(scope["path"])
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def connect():
        config = uvicorn.Config(refusing, log_config=None, lifespan="off")
        config.load()
        kind = http_protocol(LimitSettings(max_receiving=100_000))
        protocol = kind(config, ServerState(), {}, asyncio.get_running_loop())
        transport = Transport()
        protocol.connection_made(transport)
        protocol.data_received(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n")
        await asyncio.sleep(0.01)
        for _ in range(3):
            protocol.data_received(bytes(100_000))
        assert protocol.budget.taken == 0
        assert not transport.closed
        protocol.data_received(HEAD % 2 + b"ok")
        await asyncio.sleep(0.01)
        transport.close()
        protocol.connection_lost(None)

    asyncio.run(connect())
    assert asked == ["/a", "/2"]


@pytest.mark.parametrize(("others", "status"), [(0, b"413"), (400_000, b"503")])
def test_a_body_that_finds_no_room_may_come_again_but_one_that_never_fits_may_not(others, status):
    async def waiting(scope, receive, send):
        await asyncio.Event().wait()

    async def connect():
        config = uvicorn.Config(waiting, log_config=None, lifespan="off")
        config.load()
        kind = http_protocol(LimitSettings(max_receiving=500_000))
        protocol = kind(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.budget.taken = others
        transport = Transport()
        protocol.connection_made(transport)
        protocol.data_received(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n")
        await asyncio.sleep(0.01)
        for _ in range(6):
            protocol.data_received(bytes(100_000))
        protocol.connection_lost(None)
        assert protocol.budget.taken == others
        return transport.written

    assert asyncio.run(connect()).startswith(b"HTTP/1.1 " + status)
