"""What a model computes for a request over REST: bytes in, bytes out.

No thread is held by a request that waits for its model. What takes a moment by its size is done in
a pool, the rest where it is asked for: handing it over would cost more.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, TypeVar

from timonel.serving import classification
from timonel.serving.asgi import Receive
from timonel.serving.awaiting import AT_ONCE_BYTES, finished, pool_for
from timonel.serving.classification import CLASSIFY, REGRESS, Classes
from timonel.serving.core import Call, DataPlane, Outputs, RequestContext, Run
from timonel.serving.rest.bodies import PlainBody, decode_request, media_of, read_request
from timonel.serving.rest.codec import RequestBody, signature_name
from timonel.serving.rest.encoding import encode, encode_classes, encode_values
from timonel.serving.rest.features import examples_from_json
from timonel.serving.rest.jsontext import parse
from timonel.serving.rest.options import RestOptions
from timonel.serving.rest.routes import Action, Route
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE, Signature, bytes_of
from timonel.serving.status import Code, StatusError, invalid_argument, outcome

_GUNZIPPED_LIMIT: Final = 100 * 2**20
_PREDICT: Final = "tensorflow/serving/predict"
_PATIENCE_S: Final = 0.1
"""After so long, it is worth it to watch whether the client is still there."""

T = TypeVar("T")
Read = Callable[[bytes], RequestBody | PlainBody]


class Computing:
    """Computes requests for one of `routes.COMPUTING`, in an event loop.

    Args:
        plane: Where versions are.
        pool: Where large requests and answers are read and written.
        options: How requests are answered.
    """

    def __init__(self, plane: DataPlane, pool: Executor, options: RestOptions) -> None:
        self._plane = plane
        self._pool = pool
        self._options = options

    async def answer(
        self,
        route: Route,
        body: bytes,
        context: RequestContext,
        receive: Receive,
        content_type: str = "",
    ) -> bytes:
        """Return the response text of a request.

        Args:
            route: What is asked for.
            body: The request's content.
            context: Whose request it is, and until when it is to be answered.
            receive: Gives a message once the client is gone.
            content_type: What the client says that the body is; looked at where the dialect has
                other bodies than JSON.

        Raises:
            StatusError: The request is wrong, the model refused it, or time was over.
        """
        if route.action is Action.PREDICT:
            media = media_of(content_type) if self._options.dialect.plain_bodies else None
            read = partial(read_request, media=media)
            return await self._predict(route, body, context, receive, read)
        return await self._ask(route, body, context, receive)

    async def unpacked(self, body: bytes, context: RequestContext) -> bytes:
        """Return a compressed request's text."""
        return await self._in_pool(len(body), context, gunzipped, body)

    async def _predict(
        self, route: Route, body: bytes, context: RequestContext, receive: Receive, read: Read
    ) -> bytes:
        options, size = self._options, len(body)
        request = await self._work(size, context, read, body)
        with self._plane.call(route.spec, context) as call:
            signature = signature_of(call, request.signature_name)
            arrays = await self._work(
                size, context, decode_request, request, signature.inputs, call.allocate
            )
            if options.check_method_names:
                check_method(signature)
            outputs = await outputs_for(call.start(signature, arrays), context, receive)
        write = partial(encode, by_row=request.by_row)
        size = sum(map(bytes_of, outputs.values()))
        return await self._work(size, context, write, outputs)

    async def _ask(
        self, route: Route, body: bytes, context: RequestContext, receive: Receive
    ) -> bytes:
        options = self._options
        name, examples, shared = await self._work(len(body), context, _examples, body)
        ask = classification.classify if route.action is Action.CLASSIFY else classification.regress
        with self._plane.call(route.spec, context) as call:
            question = ask(call, name, examples, shared, check_method=options.check_method_names)
            run = call.start(question.signature, question.inputs, question.outputs)
            outputs = await outputs_for(run, context, receive)
        result = question.read(outputs)
        if isinstance(result, Classes):
            size = sum(map(bytes_of, outputs.values()))
            return await self._work(size, context, encode_classes, result)
        return await self._work(result.nbytes, context, encode_values, result)

    async def _work(
        self, size: int, context: RequestContext, function: Callable[..., T], *args: Any
    ) -> T:
        """Call a function, which takes as long as ``size`` says."""
        if size <= AT_ONCE_BYTES:
            return function(*args)
        return await self._in_pool(size, context, function, *args)

    async def _in_pool(
        self, size: int, context: RequestContext, function: Callable[..., T], *args: Any
    ) -> T:
        future = pool_for(self._pool, size).submit(function, *args)
        await _in_time(future, context)
        return outcome(future)


async def outputs_for(run: Run, context: RequestContext, receive: Receive) -> Outputs:
    """Wait for what a model answers, and return that.

    Args:
        run: What is asked of the model; given up when the client is gone.
        context: Until when to wait.
        receive: Gives a message once the client is gone.

    Raises:
        StatusError: The model refused or failed, or time was over.
    """
    left = _left(context)
    if not await finished(run.future, _PATIENCE_S if left is None else min(left, _PATIENCE_S)):
        watching = asyncio.create_task(_cancel_when_gone(run.future, receive))
        try:
            await _in_time(run.future, context)
        finally:
            watching.cancel()
    return run.result()


def gunzipped(body: bytes) -> bytes:
    """Return what was compressed; nothing if it is damaged or too large, as TensorFlow Serving."""
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(body, _GUNZIPPED_LIMIT)
    except zlib.error:
        return b""
    return b"" if stream.unconsumed_tail or not stream.eof else plain


async def _in_time(future: Future[Any], context: RequestContext) -> None:
    if not await finished(future, _left(context)):
        future.cancel()
        raise overdue()


def overdue() -> StatusError:
    """Return the error of a request that is not answered in time."""
    return StatusError(Code.DEADLINE_EXCEEDED, "Timed out waiting for notification")


async def _cancel_when_gone(future: Future[Any], receive: Receive) -> None:
    if (await receive())["type"] == "http.disconnect":
        future.cancel()


def _left(context: RequestContext) -> float | None:
    """Return the seconds until a request's deadline; none if it has none."""
    return None if context.deadline is None else max(0.0, context.deadline - time.monotonic())


def _examples(body: bytes) -> tuple[str, list[bytes], bytes]:
    content = parse(body)
    name = signature_name(content)
    return (name, *examples_from_json(content))


def signature_of(call: Call, name: str) -> Signature:
    """Return a signature by its name in a request.

    Raises:
        StatusError: The model has none of that name.
    """
    signature = call.find(name)
    if signature is None:
        raise invalid_argument(
            f'Serving signature name: "{name or DEFAULT_SIGNATURE}" not found in signature def'
        )
    return signature


def check_method(signature: Signature) -> None:
    """Refuse a signature that is declared for something else than prediction.

    Raises:
        StatusError: It is.
    """
    methods = (_PREDICT, CLASSIFY, REGRESS)
    if signature.method_name not in methods:
        raise StatusError(
            Code.INTERNAL,
            "Expected prediction signature method_name to be one of "
            f"{{{', '.join(methods)}}}. Was: {signature.method_name}",
        )
