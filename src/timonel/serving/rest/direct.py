"""Predictions, answered from callbacks of the event loop.

Small ones cost half as much as by way of ASGI, its messages and coroutines, and all are answered
alike: what does not fit here goes that way. What takes a moment by its size is done in a pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from timonel.serving.access.browsers import is_host_allowed
from timonel.serving.awaiting import AT_ONCE_BYTES, pool_for, when_finished
from timonel.serving.core import Call, DataPlane, Outputs, RequestContext, Run
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
from timonel.serving.runtimes.base import bytes_of
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
Reply = Callable[[Answer], None]


class Direct:
    """What predictions are answered with.

    Args:
        plane: Where versions are.
        pool: Where large requests and answers are read and written.
        options: How requests are answered.
        monitor: What is told of each request.
        max_body: Bytes of the largest body that may be sent; none for any.
        hosts: Host names besides loopback ones that a request may be for; none for any.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        options: RestOptions,
        monitor: Monitor | None = None,
        max_body: int | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self.plane = plane
        self.pool = pool
        self.options = options
        self.monitor = monitor
        self._most = max_body
        self._hosts = hosts

    def takes(self, head: Head) -> bool:
        """Whether the size of the body and the Host header are accepted."""
        return (self._most is None or head.length <= self._most) and is_host_allowed(
            head.host, self._hosts
        )


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
        self._pool = direct.pool
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
        options = self._options
        context = context_of(Action.PREDICT.value, self._observation, options.timeout_s)
        if options.timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(options.timeout_s, self._expire)
        self._by_size(len(body), partial(self._read, body, context), self._start)

    def give_up(self) -> None:
        """Note that nobody waits for the answer any more."""
        self._cancel()
        self._end(Code.CANCELLED)

    def _by_size(self, size: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do what takes as long as a size says, and go on with its result, unless it fails."""
        if size <= AT_ONCE_BYTES:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - becomes the answer
                self._fail(error)
            else:
                then(result)
            return
        future = pool_for(self._pool, size).submit(work)
        when_finished(future, partial(self._go_on, then))

    def _go_on(self, then: Callable[[T], None], future: Future[T]) -> None:
        if self._reply is None:
            self._let_go()  # if it was given up while the version was taken
            return
        error = future.exception()
        if isinstance(error, Exception):
            self._fail(error)
        else:
            then(future.result())

    def _read(self, body: bytes, context: RequestContext) -> Callable[[], Run]:
        """Return what asks the model. May be called in another thread than all else."""
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
        return partial(call.start, signature, arrays)

    def _start(self, ask: Callable[[], Run]) -> None:
        try:
            run = self._run = ask()
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
            return
        if run.future.done():
            self._finish(run.future)
        else:
            when_finished(run.future, self._finish)

    def _finish(self, _: Future[Outputs]) -> None:
        """Answer with what the model said, unless there is an answer already."""
        run = self._run
        if self._reply is None or run is None:
            return
        try:
            outputs = run.result()
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
            return
        self._let_go()
        size = sum(map(bytes_of, outputs.values()))
        write = partial(encode, outputs, by_row=self._by_row)
        self._by_size(size, write, self._written)

    def _written(self, content: bytes) -> None:
        self._answer(Code.OK, Answer(200, content))

    def _expire(self) -> None:
        if self._reply is not None:
            self._cancel()
            self._fail(overdue())

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, StatusError):
            _LOG.error("a prediction of %s failed", self._head.spec.name, exc_info=error)
            error = unexpected(error)
        self._answer(error.code, error_answer(error))

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
        # Its future refers to its callbacks, and so to this object.
        self._run = None
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
