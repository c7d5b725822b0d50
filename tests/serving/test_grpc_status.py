from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import grpc
import pytest

from timonel.serving.grpc_status import refuse
from timonel.serving.status import Code


class Request:
    """Stands for a large request."""


@contextlib.asynccontextmanager
async def served(handler):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_a_refused_call_keeps_nothing_of_its_request(kind):
    kept = []

    def deserialize(_):
        request = Request()
        kept.append(weakref.ref(request))
        return request

    async def unary(request, context):
        refuse(context, Code.NOT_FOUND, f"no {type(request).__name__}", [("a", "b")])
        return b"not sent"

    async def stream(request, context):
        yield b"sent"
        refuse(context, Code.NOT_FOUND, f"no {type(request).__name__}", [("a", "b")])

    async def called(channel):
        if kind == "unary":
            await channel.unary_unary("/s/m")(b"")
        else:
            async for answer in channel.unary_stream("/s/m")(b""):
                assert answer == b"sent"

    async def main():
        make = {
            "unary": (grpc.unary_unary_rpc_method_handler, unary),
            "stream": (grpc.unary_stream_rpc_method_handler, stream),
        }
        maker, behaviour = make[kind]
        async with served(maker(behaviour, request_deserializer=deserialize)) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await called(channel)
                assert caught.value.code() is grpc.StatusCode.NOT_FOUND
                assert caught.value.details() == "no Request"
                assert ("a", "b") in tuple(caught.value.trailing_metadata())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()
