"""The interceptor alone, in a gRPC server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle

import grpc
import pytest

from timonel.serving.asgi import NOT_STARTED, error_response
from timonel.serving.auth.control import AccessControl
from timonel.serving.auth.rpc import AccessInterceptor
from timonel.serving.settings.auth import AccessSettings, LimitSettings
from timonel.serving.settings.server import NOT_STARTED_HEADER
from timonel.serving.status import Code, NotStartedError, StatusError

pytestmark = pytest.mark.process


async def serving(method, limits):
    """Return a server of the method ``/t.S/M``, and its address."""
    control = AccessControl(AccessSettings(limits=limits))
    server = grpc.aio.server(interceptors=[AccessInterceptor(control)])
    handler = grpc.unary_unary_rpc_method_handler(method)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.S", {"M": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def test_a_call_that_is_one_too_many_may_be_sent_elsewhere():
    async def run():
        has_begun, may_end = asyncio.Event(), asyncio.Event()

        async def slow(request, _):
            has_begun.set()
            await may_end.wait()
            return request

        server, address = await serving(slow, LimitSettings(max_requests=1))
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/t.S/M")
            first = call(b"first", timeout=60)
            await has_begun.wait()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"second", timeout=60)
            may_end.set()
            assert await first == b"first"
        await server.stop(0)
        return refused.value

    error = asyncio.run(run())
    assert (error.code().name, error.details()) == ("UNAVAILABLE", "too many requests at once")
    assert dict(error.initial_metadata())[NOT_STARTED_HEADER] == "1"
    trailing = dict(error.trailing_metadata())
    assert (trailing["retry-after"], trailing["grpc-retry-pushback-ms"]) == ("1", "1000")


HEALTH = "/grpc.health.v1.Health/Check"


@contextlib.asynccontextmanager
async def checked():
    """Open two connections to a server whose health check returns its message."""

    async def echo(request, _):
        return request

    server = grpc.aio.server(interceptors=[AccessInterceptor(AccessControl(AccessSettings()))])
    handler = grpc.unary_unary_rpc_method_handler(echo)
    service, method = HEALTH[1:].split("/")
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    alone = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(address, alone) as one,
        grpc.aio.insecure_channel(address, alone) as other,
    ):
        yield one, other
    await server.stop(0)


def test_slow_messages_of_a_connection_delay_no_health_checks_of_others():
    async def run():
        async with checked() as (one, other):
            check = other.unary_unary(HEALTH)
            assert await check(b"before", timeout=60) == b"before"
            slow = [one.stream_unary(HEALTH)() for _ in range(64)]
            last = one.unary_unary(HEALTH)(b"last", timeout=60)
            await asyncio.sleep(0.05)
            assert await check(b"during", timeout=60) == b"during"
            assert sum(not call.done() for call in slow) > 16
            assert await last == b"last"
            codes = {(await call.code()).name for call in slow}
            # The last few, for which nobody waits, may take longer.
            assert {"UNAVAILABLE"} <= codes <= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}

    gc.disable()
    try:
        asyncio.run(run())
        assert not any(type(each) is NotStartedError for each in gc.get_objects())
    finally:
        gc.enable()


def test_a_message_that_nobody_waits_for_may_come_late():
    async def run():
        async with checked() as (one, other):
            late = [one.stream_unary(HEALTH)() for _ in range(8)]
            await asyncio.sleep(0.3)
            for call in late:
                await call.write(b"late")
                await call.done_writing()
            assert [await call for call in late] == [b"late"] * len(late)
            for call in [other.stream_unary(HEALTH)() for _ in range(40)]:
                call.cancel()
            assert await one.unary_unary(HEALTH)(b"after", timeout=60) == b"after"

    asyncio.run(run())


def test_responses_that_nobody_reads_are_limited():
    async def run():
        answer = bytes(4 * 2**20 - 1000)

        async def large(request, _):
            return answer

        server, address = await serving(large, LimitSettings(max_response=6 * 2**20))
        async with (
            grpc.aio.insecure_channel(address, [("grpc.http2.bdp_probe", 0)]) as one,
            grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as other,
        ):
            unread = one.unary_stream("/t.S/M")(b"")  # takes a message when asked to
            await unread.initial_metadata()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await other.unary_unary("/t.S/M")(b"", timeout=60)
            assert await unread.read() == answer
            assert await unread.read() == grpc.aio.EOF
            assert await other.unary_unary("/t.S/M")(b"", timeout=60) == answer
        await server.stop(0)
        return refused.value

    error = asyncio.run(run())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "clients have not read 4193304 bytes" in error.details()


def test_only_errors_of_requests_that_nothing_computes_are_marked():
    error = pickle.loads(pickle.dumps(NotStartedError("busy")))
    assert (error.code, error.message) == (Code.UNAVAILABLE, "busy")
    assert error_response(error).headers == NOT_STARTED
    assert error_response(StatusError(Code.UNAVAILABLE, "it failed")).headers == ()
