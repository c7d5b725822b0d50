"""gRPC server interceptor for access control."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from timonel.serving.auth.control import AccessControl, right_for_call, secret_of
from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.grpc_requests import malformed, refuse
from timonel.serving.settings.auth import LimitSettings, Right
from timonel.serving.status import Code, NotStartedError, StatusError

_SLOW_S = 1.0
"""Time after which a message that has not arrived is slow."""
_UNAUTHENTICATED_READS = 8
"""Limit of concurrently received messages of calls without a right, such as health checks."""
_TICK_S = 0.02
_TICKS = 2
"""Ticks that such a message may take while others wait: two, as the loop may stall during one."""
_ADMITTED = contextlib.nullcontext()


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped
    """Reject unauthorized calls before their messages are received.

    gRPC receives the message of a unary call before it calls the handler, so handlers get it as a
    stream, from which they take the one message.
    """

    def __init__(self, control: AccessControl) -> None:
        self._control = control
        self._arrivals = _Arrivals(control.settings.limits)
        self._unread = _Unread(control.settings.limits.max_response)
        self._guarded: dict[str, Any] = {}
        """Handlers of the known methods: making one takes as long as a small call."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Return the method's handler, wrapped in access control."""
        known = self._guarded.get(details.method)
        if known is not None:
            return known
        handler = await continuation(details)
        right = right_for_call(details.method)
        if handler is None:
            # Unauthorized clients do not learn which methods exist.
            return grpc.stream_unary_rpc_method_handler(self._unary(_unimplemented, right))
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        make: Any = grpc.stream_stream_rpc_method_handler
        if handler.unary_unary is not None:
            make = grpc.stream_unary_rpc_method_handler
            call = self._unary(handler.unary_unary, right)
        elif handler.unary_stream is not None:  # Health's Watch
            call = self._unary(handler.unary_stream, right)
        else:  # reflection
            call = self._stream(handler.stream_stream, right)
        guarded = self._guarded[details.method] = make(call, **coders)
        return guarded

    def _unary(self, behaviour: Any, right: Right | None) -> Any:
        async def call(_: AsyncIterator[Any], context: Any) -> Any:
            try:
                with self._admitted(context, right):
                    request = await self._arrivals.message_of(context, right)
                    return self._unread.counted(context, await behaviour(request, context))
            except StatusError as error:
                await refuse(context, error)
                return None

        return call

    def _stream(self, behaviour: Any, right: Right | None) -> Any:
        async def call(_: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            try:
                with self._admitted(context, right):
                    requests = self._arrivals.small_messages_of(context)
                    async for answer in behaviour(requests, context):
                        yield answer
            except StatusError as error:
                await refuse(context, error)

        return call

    def _admitted(
        self, context: Any, right: Right | None
    ) -> contextlib.AbstractContextManager[None]:
        if right is None or self._control.guards_nothing:
            return _ADMITTED
        self._control.admit(right, secret_of(context.invocation_metadata() or ()))
        return self._control.slot()


class _Arrivals:
    """Messages that arrive; the slow ones are limited in number and time.

    gRPC keeps the part of a message that has arrived, and does not tell its size.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self._most = math.inf
        if limits.max_receiving is not None and limits.max_body is not None:
            self._most = max(1, limits.max_receiving // limits.max_body)
        self._longest_s = math.inf if limits.body_s is None else limits.body_s
        self._turns = _Turns(self._end)
        self._since: dict[asyncio.Task[Any], tuple[float, float]] = {}
        """Begin of each call, and the time that its message may take."""
        self._ended: dict[asyncio.Task[Any], StatusError] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def message_of(self, context: Any, right: Right | None) -> Any:
        """Return the message of a unary call.

        The message of a call without a right, such as a health check, may not be slow: it is small,
        and anybody may send it. gRPC takes none from the network before it is read here.
        """
        if right is None:
            async with self._turns.next_of(context.peer()):
                request = await self._read(context, _SLOW_S)
        else:
            request = await self._read(context, self._longest_s)
        if request is grpc.aio.EOF:
            raise malformed()
        return request

    async def small_messages_of(self, context: Any) -> AsyncIterator[Any]:
        """Yield the messages of a call with small ones, none of which may be slow.

        A client that has nothing more to ask ends its side of the call.
        """
        while (request := await self._read(context, _SLOW_S)) is not grpc.aio.EOF:
            yield request

    async def _read(self, context: Any, longest_s: float) -> Any:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._since[task] = loop.time(), longest_s
        if self._timer is None:
            self._timer = loop.call_later(_SLOW_S, self._look, loop)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise self._ended.pop(task) from None  # not by a name, which this frame would keep
        finally:
            del self._since[task]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        slow = [task for task, (since, _) in self._since.items() if now - since >= _SLOW_S]
        for number, task in enumerate(slow):
            since, longest_s = self._since[task]
            if now - since >= longest_s:
                text = "the message took too long to arrive"
                self._end(task, StatusError(Code.DEADLINE_EXCEEDED, text))
            elif number >= self._most:
                self._end(task, _too_many())
        self._timer = loop.call_later(_SLOW_S, self._look, loop) if self._since else None

    def _end(self, task: asyncio.Task[Any], error: StatusError) -> None:
        if task not in self._ended:
            self._ended[task] = error
            task.cancel()


def _too_many() -> StatusError:
    return NotStartedError("too many slow requests at once")


class _Turns:
    """Turns to receive a message: few at once, and connections one after another.

    Honest messages are small and come with their calls. While others wait, one that has not arrived
    after a few ticks loses its turn.
    """

    def __init__(self, end: Callable[[asyncio.Task[Any], StatusError], None]) -> None:
        self._end = end
        self._waiting: OrderedDict[str, deque[tuple[asyncio.Task[Any], asyncio.Future[None]]]] = (
            OrderedDict()
        )
        """Calls by connection, in the order of their turns."""
        self._ticks: dict[asyncio.Task[Any], int] = {}
        """Ticks since the begin of each turn."""
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def next_of(self, peer: str) -> AsyncIterator[None]:
        """Wait for a turn of a connection, which lasts during the block."""
        task, begin = asyncio.current_task(), asyncio.get_running_loop().create_future()
        assert task is not None
        self._waiting.setdefault(peer, deque()).append((task, begin))
        self._pass_on()
        try:
            await begin
            yield
        finally:
            begin.cancel()
            self._ticks.pop(task, None)
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting and len(self._ticks) < _UNAUTHENTICATED_READS:
            peer, calls = self._waiting.popitem(last=False)
            task, begin = calls.popleft()
            if calls:
                self._waiting[peer] = calls
            if not begin.done():  # cancelled
                begin.set_result(None)
                self._ticks[task] = 0
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for task, ticks in self._ticks.items():
            self._ticks[task] = ticks + 1
            if ticks >= _TICKS and self._waiting:
                self._end(task, _too_many())
        self._pass_on()


class _Unread:
    """Large responses that clients have not read yet; their total size is limited.

    gRPC keeps a response while the client's flow control stops it, and has no time limit for that.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = math.inf if limit is None else limit
        self._bytes = 0

    def counted(self, context: Any, response: Any) -> Any:
        """Return a response, which counts until the call has ended, or reject it."""
        if not isinstance(response, bytes) or len(response) < AT_ONCE_BYTES:
            return response
        if self._bytes and self._bytes + len(response) > self._limit:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"clients have not read {self._bytes} bytes of responses; the limit is "
                f"{self._limit}, of --max-response",
            )
        self._bytes += len(response)
        context.add_done_callback(lambda _: self._release(len(response)))
        return response

    def _release(self, size: int) -> None:
        self._bytes -= size


async def _unimplemented(request: Any, context: Any) -> None:  # noqa: ARG001 - a gRPC handler
    raise StatusError(Code.UNIMPLEMENTED, "Method not found!")
