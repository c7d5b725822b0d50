from __future__ import annotations

import asyncio
import socket

import pytest

from timonel.errors import ServingError
from timonel.serving.config import ServerSettings
from timonel.serving.ports import bind
from timonel.serving.rest_server import RestServer, bind_rest

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
            with pytest.raises(ServingError, match="expected to listen for REST, got Address"):
                asyncio.run(start(second))
