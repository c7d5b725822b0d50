"""Run compute requests over REST with event-loop callbacks.

uvicorn's protocol and the ASGI application share this flow: a coroutine per request would cost as
much CPU as the rest of a small request. Slow work on large data runs in a pool, and no request
holds a thread while it waits for its model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from timonel.serving.auth.policy import PRINCIPAL
from timonel.serving.futures import AT_ONCE_BYTES, pool_for, when_finished
from timonel.serving.inference import (
    Call,
    DataPlane,
    Execution,
    Outputs,
    RequestContext,
    classification,
)
from timonel.serving.inference.classification import Classes, PreparedRun
from timonel.serving.inference.context import Correlation, Observation
from timonel.serving.inference.signature_check import check_method
from timonel.serving.protocols.tfs_rest.http import (
    TIMED_OUT,
    RestAction,
    RestResponse,
    Route,
    error_answer,
    unexpected,
    unzip,
)
from timonel.serving.protocols.tfs_rest.jsontext import parse
from timonel.serving.protocols.tfs_rest.request_body import (
    examples_from_json,
    media_of,
    read_request,
    signature_name,
)
from timonel.serving.protocols.tfs_rest.response_body import encode, encode_classes, encode_values
from timonel.serving.settings import RestSettings
from timonel.serving.settings.dialect import TIMONEL, Dialect
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature, bytes_of
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.monitor import Monitor

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def context_of(
    api: str, observation: Observation | None, timeout_s: float | None
) -> RequestContext:
    """Create the context of a request that has arrived, with its deadline."""
    return RequestContext(
        deadline=None if timeout_s is None else time.monotonic() + timeout_s,
        principal=PRINCIPAL.get(),
        entrypoint="REST",
        api=api,
        observation=observation,
    )


@dataclass(frozen=True, slots=True)
class RestBackend:
    """Shared parts of all REST requests.

    Args:
        plane: Data plane that runs the models.
        pool: Executor for large requests and responses.
        settings: CORS, timeout and method names.
        dialect: The response dialect; has no effect on the Open Inference Protocol.
        monitor: Records each request; None for no monitoring.
    """

    plane: DataPlane
    pool: Executor
    settings: RestSettings = field(default_factory=RestSettings)
    dialect: Dialect = TIMONEL
    monitor: Monitor | None = None


class PredictRequest:
    """A request for one of `http.COMPUTING`, from body to response.

    For one event loop.

    Args:
        backend: The shared parts of all requests.
        route: The action and the model.
        content_type: The body's content type; empty if absent.
        correlation: The headers that relate it to other requests.
        reply: Called once with the response, perhaps before `begin` returns; never after `cancel`.
    """

    __slots__ = (
        "_backend",
        "_call",
        "_content_type",
        "_context",
        "_correlation",
        "_encode",
        "_observation",
        "_pending",
        "_reply",
        "_route",
        "_run",
        "_timer",
    )

    _context: RequestContext
    _encode: Callable[[Outputs], bytes]

    def __init__(
        self,
        backend: RestBackend,
        route: Route,
        content_type: str,
        correlation: Correlation | None,
        reply: Callable[[RestResponse], None],
    ) -> None:
        self._backend = backend
        self._route = route
        self._content_type = content_type
        self._correlation = correlation
        self._reply: Callable[[RestResponse], None] | None = reply
        self._observation: Observation | None = None
        self._call: Call | None = None
        self._pending: Future[Any] | None = None
        self._run: Execution | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, body: bytes, *, zipped: bool = False) -> None:
        """Decode the body and start the model.

        Args:
            body: The complete request body.
            zipped: Whether the body is compressed by gzip.
        """
        route, monitor = self._route, self._backend.monitor
        timeout_s = self._backend.settings.timeout_s
        api = route.action.value
        if monitor is not None:
            self._observation = monitor.begin("REST", api, route.spec.name, self._correlation)
        self._context = context_of(api, self._observation, timeout_s)
        if timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)
        if zipped:
            self._in_pool(len(body), partial(unzip, body), self._read)
        else:
            self._read(body)

    def cancel(self) -> None:
        """Cancel a request whose client has disconnected; no effect after the response."""
        if self._reply is not None:
            self._cancel_pending()
            self._end(Code.CANCELLED)

    def _read(self, body: bytes) -> None:
        self._by_size(len(body), partial(self._prepare, body), self._start)

    def _by_size(self, size: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run ``work``, in a pool if large, and pass on its result."""
        if size > AT_ONCE_BYTES:
            self._in_pool(size, work, then)
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
        else:
            then(result)

    def _in_pool(self, size: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        future = self._pending = pool_for(self._backend.pool, size).submit(work)
        when_finished(future, partial(self._resume, then))

    def _resume(self, then: Callable[[T], None], future: Future[T]) -> None:
        if self._reply is None:
            self._release()  # if cancelled while the pool acquired the version
            return
        self._pending = None
        error = future.exception()
        if isinstance(error, Exception):
            self._fail(error)
        else:
            then(future.result())

    def _prepare(self, body: bytes) -> Callable[[], Execution]:
        """Return a function that starts the model.

        May run in a thread of the pool.
        """
        if self._route.action is RestAction.PREDICT:
            return self._prepare_predict(body)
        content = parse(body)
        name = signature_name(content)
        examples, shared = examples_from_json(content)
        ask = (
            classification.classify
            if self._route.action is RestAction.CLASSIFY
            else classification.regress
        )
        call = self._acquire()
        checks = self._backend.settings.check_method_names
        prepared = ask(call, name, examples, shared, check_method=checks)
        self._encode = partial(_encode_result, prepared)
        return partial(call.start, prepared.signature, prepared.inputs, prepared.outputs)

    def _prepare_predict(self, body: bytes) -> Callable[[], Execution]:
        backend = self._backend
        media = media_of(self._content_type) if backend.dialect.plain_bodies else None
        request = read_request(body, media)
        call = self._acquire()
        signature = _signature_of(call, request.signature_name)
        arrays = request.arrays(signature.inputs, call.allocate)
        if backend.settings.check_method_names:
            check_method(signature)
        self._encode = partial(encode, by_row=request.by_row)
        return partial(call.start, signature, arrays)

    def _acquire(self) -> Call:
        """Acquire the model version, until `_release`."""
        call = self._call = self._backend.plane.call(self._route.spec, self._context)
        return call

    def _release(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.release()

    def _start(self, start: Callable[[], Execution]) -> None:
        try:
            run = self._run = start()
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
            return
        if run.future.done():
            self._finish(run.future)
        else:
            self._pending = run.future
            when_finished(run.future, self._finish)

    def _finish(self, _: Future[Outputs]) -> None:
        """Encode the model's outputs, unless the request has been answered."""
        run = self._run
        if self._reply is None or run is None:
            return
        self._pending = None
        try:
            outputs = run.result()
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
            return
        self._release()
        size = sum(map(bytes_of, outputs.values()))
        self._by_size(size, partial(self._encode, outputs), self._succeed)

    def _succeed(self, content: bytes) -> None:
        self._answer(Code.OK, RestResponse(200, content))

    def _expire(self) -> None:
        if self._reply is not None:
            self._cancel_pending()
            self._fail(StatusError(Code.DEADLINE_EXCEEDED, TIMED_OUT))

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, StatusError):
            route = self._route
            _LOG.error("%s of %s failed", route.action.value, route.spec.name, exc_info=error)
            error = unexpected(error)
        self._answer(error.code, error_answer(error))

    def _answer(self, code: Code, answer: RestResponse) -> None:
        reply = self._reply
        self._end(code)
        if reply is not None:
            reply(answer)

    def _end(self, code: Code) -> None:
        self._reply = None
        if self._timer is not None:
            self._timer.cancel()
        self._release()
        # Break reference cycles: futures refer to their callbacks, and thus to this object.
        self._run = self._pending = None
        if self._backend.monitor is not None and self._observation is not None:
            self._backend.monitor.end(self._observation, code)

    def _cancel_pending(self) -> None:
        if self._pending is not None:
            self._pending.cancel()


def _encode_result(prepared: PreparedRun[Classes] | PreparedRun[Array], outputs: Outputs) -> bytes:
    result = prepared.read(outputs)
    return encode_classes(result) if isinstance(result, Classes) else encode_values(result)


def _signature_of(call: Call, name: str) -> Signature:
    signature = call.find(name)
    if signature is None:
        raise invalid_argument(
            f'Serving signature name: "{name or DEFAULT_SIGNATURE}" not found in signature def'
        )
    return signature
