"""Small predictions, answered from callbacks of the event loop.

They cost half as much as by way of ASGI, its messages and coroutines, and are answered alike:
what does not fit here goes that way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from timonel.serving.awaiting import AT_ONCE_BYTES, when_finished
from timonel.serving.core import Call, DataPlane, RequestContext, Run
from timonel.serving.monitoring.monitor import Monitor
from timonel.serving.monitoring.observation import Observation
from timonel.serving.rest.answers import Answer, error_answer, unexpected
from timonel.serving.rest.bodies import decode_request, media_of, read_request
from timonel.serving.rest.computing import check_method, overdue, signature_of
from timonel.serving.rest.encoding import encode
from timonel.serving.rest.heads import Head
from timonel.serving.rest.http import context_of
from timonel.serving.rest.options import RestOptions
from timonel.serving.rest.routes import Action
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
Reply = Callable[[Answer], None]


class Direct:
    """What predictions are answered with.

    Args:
        plane: Where versions are.
        options: How requests are answered.
        monitor: What is told of each request.
        max_body: Bytes of the largest body that may be sent; none for any.
    """

    def __init__(
        self,
        plane: DataPlane,
        options: RestOptions,
        monitor: Monitor | None = None,
        max_body: int | None = None,
    ) -> None:
        self.plane = plane
        self.options = options
        self.monitor = monitor
        self._most = AT_ONCE_BYTES if max_body is None else min(max_body, AT_ONCE_BYTES)

    def takes(self, head: Head) -> bool:
        """Whether a request is small enough to be read and answered while the loop waits."""
        return head.length <= self._most


class Prediction:
    """One request, from its last byte to its answer. For one event loop.

    Args:
        direct: What it is answered with.
        head: What is asked for.
        reply: Called once with the answer, perhaps before `begin` returns; never if it was given
            up.
    """

    def __init__(self, direct: Direct, head: Head, reply: Reply) -> None:
        self._plane = direct.plane
        self._options = direct.options
        self._monitor = direct.monitor
        self._head = head
        self._reply: Reply | None = reply
        self._observation: Observation | None = None
        self._held: AbstractContextManager[Call] | None = None
        self._run: Run | None = None
        self._by_row = True
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, body: bytes) -> None:
        """Ask the model for the answer."""
        spec, monitor = self._head.spec, self._monitor
        if monitor is not None:
            api = Action.PREDICT.value
            self._observation = monitor.begin("REST", api, spec.name, self._head.trace)
        context = context_of(Action.PREDICT.value, self._observation, self._options.timeout_s)
        try:
            run = self._run = self._start(body, context)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
            return
        if run.future.done():
            self._finish()
            return
        when_finished(run.future, self._finish)
        if self._options.timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._options.timeout_s, self._expire)

    def give_up(self) -> None:
        """Note that nobody waits for the answer any more."""
        self._end(Code.CANCELLED)
        self._cancel()

    def _start(self, body: bytes, context: RequestContext) -> Run:
        options = self._options
        plain = options.dialect.plain_bodies
        request = read_request(body, media_of(self._head.content_type) if plain else None)
        held = self._plane.call(self._head.spec, context)
        call = held.__enter__()
        self._held = held  # only now: what was not entered must not be left
        signature = signature_of(call, request.signature_name)
        arrays = decode_request(request, signature.inputs, call.allocate)
        if options.check_method_names:
            check_method(signature)
        self._by_row = request.by_row
        return call.start(signature, arrays)

    def _finish(self) -> None:
        """Answer with what the model said, unless there is an answer already."""
        run = self._run
        if self._reply is None or run is None:
            return
        try:
            outputs = run.result()
            self._let_go()
            content = encode(outputs, by_row=self._by_row, dialect=self._options.dialect)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
        else:
            self._answer(Code.OK, Answer(200, content))

    def _expire(self) -> None:
        if self._reply is not None:
            self._cancel()
            self._fail(overdue())

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, StatusError):
            _LOG.error("a prediction of %s failed", self._head.spec.name, exc_info=error)
            error = unexpected(error)
        self._answer(error.code, error_answer(error, self._options.dialect))

    def _answer(self, code: Code, answer: Answer) -> None:
        reply = self._reply
        self._end(code)
        if reply is not None:
            reply(answer)

    def _end(self, code: Code) -> None:
        if self._reply is None:
            return
        self._reply = None
        if self._timer is not None:
            self._timer.cancel()
        self._let_go()
        if self._monitor is not None and self._observation is not None:
            self._monitor.end(self._observation, code)

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(None, None, None)

    def _cancel(self) -> None:
        future: Future[Any] | None = None if self._run is None else self._run.future
        if future is not None:
            future.cancel()
