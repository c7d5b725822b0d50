from __future__ import annotations

import asyncio
import json
import socket

import pytest

from timonel.errors import ServingError
from timonel.serving.asgi import Route, Router, at
from timonel.serving.ports import bind
from timonel.serving.rest_server import RestServer, bind_rest
from timonel.serving.settings.server import ServerSettings

SETTINGS = ServerSettings(models=(), rest_port=0)


def test_every_connection_notices_that_its_client_is_gone():
    with bind_rest(SETTINGS) as bound:
        bound.listen()
        with socket.create_connection(bound.getsockname(), 5):
            accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                after_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert after_ms == 60_000


def test_a_port_that_another_server_listened_on_first_is_told():
    async def start(bound):
        await RestServer(None, bound, 1, {}).start()

    with bind("127.0.0.1", 0, "REST") as first:
        settings = SETTINGS.model_copy(update={"rest_port": first.getsockname()[1]})
        with bind_rest(settings) as second:
            first.listen()
            with pytest.raises(
                ServingError,
                match=r"for REST is already in use.* choose another port, such as [0-9]",
            ):
                asyncio.run(start(second))


def test_connections_that_take_too_long_are_ended():
    lost = []

    class Busy(asyncio.Protocol):
        """Like a connection whose request no task answers."""

        def __init__(self, config, server_state, app_state, _loop=None):
            self.connections = server_state.connections

        def connection_made(self, transport):
            self.transport = transport
            self.connections.add(self)

        def connection_lost(self, exc):
            self.connections.discard(self)
            lost.append(exc)

        def shutdown(self):
            pass

    async def main():
        with bind_rest(SETTINGS) as bound:
            server = RestServer(None, bound, 1, {"http": Busy})
            await server.start()
            _, writer = await asyncio.open_connection(*bound.getsockname())
            await asyncio.sleep(0.05)
            async with asyncio.timeout(30):
                await server.stop()
            assert lost == [None]
            writer.close()

    asyncio.run(main())


@pytest.mark.process
def test_a_request_beyond_the_grace_period_is_refused_and_logged_without_a_traceback(caplog):
    async def main():
        began = asyncio.Event()

        async def hang(_):
            began.set()
            await asyncio.Event().wait()

        app = Router([Route(frozenset(), at("/slow"), hang)])
        with bind_rest(SETTINGS) as bound:
            server = RestServer(app, bound, 1, {})
            await server.start()
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(30):
                await began.wait()
                await server.stop()
                answer = await reader.read()
            writer.close()
            return answer

    head, _, body = asyncio.run(main()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"application/json" in head
    assert json.loads(body) == {"error": "the server ended before it could answer this request"}
    assert [each.exc_info for each in caplog.records if each.levelname == "ERROR"] == [None]
    assert "Cancel 1 running task(s)" in caplog.text
