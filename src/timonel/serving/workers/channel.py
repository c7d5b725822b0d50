"""What the leader and a worker say to each other: questions with answers, and news without.

Over the same kind of connection as between fronts and compute processes, so that large things go
through shared memory, and descriptors come along. Both sides are this program: what goes wrong
here ends the connection, and with it the worker, which is started again.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from timonel.serving.compute.frames import Kind
from timonel.serving.compute.inbox import Message
from timonel.serving.compute.link import Link
from timonel.serving.compute.protocol import ProtocolError
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_MEMORY_BYTES = 256 << 20
_ASK, _ANSWER, _REFUSE, _NEWS = "ask", "answer", "refuse", "news"

Handle = Callable[[str, list[Any]], Any]
"""Answers a question or takes news: its name and its values. May return a Future."""


class Channel:
    """One end. Owns the socket and a thread; any thread asks and tells.

    Args:
        connection: One end of a pair of sequential-packet sockets.
        handle: Called in the channel's thread, so it must not wait: what takes time returns a
            future. What it raises as a `StatusError` is the answer.
        on_end: Called in that thread when the other side is gone.
        name: For the thread.
    """

    def __init__(
        self,
        connection: socket.socket,
        handle: Handle,
        on_end: Callable[[], None],
        name: str,
    ) -> None:
        self._handle = handle
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._joined: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._over = False
        self._link = Link(connection, limit_bytes=_MEMORY_BYTES, on_join=self._keep)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def ask(self, name: str, *values: Any) -> Future[Any]:
        """Ask the other side; fails with a `StatusError` if it refuses, or is gone."""
        return self._ask(name, values)[1]

    def ask_for_connection(self, name: str, *values: Any) -> tuple[socket.socket, Any]:
        """Ask, and wait, for a connection that comes before the answer.

        Raises:
            StatusError: It is refused, or the other side is gone.
        """
        number, future = self._ask(name, values)
        try:
            answer = future.result()
        except BaseException:
            with self._lock:
                late = self._joined.pop(number, None)
            if late is not None:
                late.close()
            raise
        with self._lock:
            return self._joined.pop(number), answer

    def tell(self, name: str, *values: Any) -> None:
        """Tell the other side something, if it is there."""
        self._post(0, [_NEWS, name, list(values)])

    def pass_on(self, number: int, connection: socket.socket) -> None:
        """Give the other side a copy of a connection, before the answer to question ``number``."""
        self._link.pass_on(number, connection)

    def close(self) -> None:
        """End the connection, and wait for the thread."""
        self._link.shut()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _ask(self, name: str, values: Sequence[Any]) -> tuple[int, Future[Any]]:
        number = next(self._numbers)
        future: Future[Any] = Future()
        with self._lock:
            over = self._over
            if not over:
                self._asked[number] = future
        if over:
            future.set_exception(_gone())
        else:
            self._post(number, [_ASK, name, list(values)])
        return number, future

    def _post(self, number: int, fields: list[Any]) -> None:
        try:
            self._link.post(Kind.TELL, number, fields)
        except StatusError as error:
            _LOG.debug("not said: %s", error)

    def _keep(self, number: int, connection: socket.socket) -> None:
        with self._lock:
            self._joined[number] = connection

    def _serve(self) -> None:
        try:
            self._link.serve(self._take)
        except ProtocolError as error:
            _LOG.error("a worker's connection is ended: %s", error)
        with self._lock:
            self._over = True
            asked, self._asked = list(self._asked.values()), {}
            joined, self._joined = list(self._joined.values()), {}
        for future in asked:
            if future.set_running_or_notify_cancel():
                future.set_exception(_gone())
        for connection in joined:
            connection.close()
        self._link.close()
        self._on_end()

    def _take(self, message: Message) -> None:
        if message.kind is not Kind.TELL:
            raise ProtocolError(f"expected what fronts say, got {message.kind.name}")
        what, *rest = message.fields
        if what == _NEWS:
            self._handle(rest[0], rest[1])
        elif what == _ASK:
            self._answer(message.number, rest[0], rest[1])
        else:
            with self._lock:
                future = self._asked.pop(message.number, None)
            if future is None or not future.set_running_or_notify_cancel():
                return
            if what == _ANSWER:
                future.set_result(rest[0])
            else:
                future.set_exception(StatusError(Code(rest[0]), rest[1]))

    def _answer(self, number: int, name: str, values: list[Any]) -> None:
        try:
            result = self._handle(name, [number, *values])
        except StatusError as error:
            self._refuse(number, error)
            return
        if not isinstance(result, Future):
            self._settle(number, result)
            return

        def done(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                self._settle(number, future.result())
            else:
                self._refuse(number, error)

        result.add_done_callback(done)

    def _settle(self, number: int, result: Any) -> None:
        try:
            self._post(number, [_ANSWER, result])
        except TypeError as error:  # what JSON has not: whoever asked must not wait for ever
            self._refuse(number, error)

    def _refuse(self, number: int, error: BaseException) -> None:
        if not isinstance(error, StatusError):
            _LOG.error("a question of a worker failed", exc_info=error)
            error = StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}")
        self._post(number, [_REFUSE, int(error.code), error.message])


def _gone() -> StatusError:
    return StatusError(Code.UNAVAILABLE, "the server is stopping")
