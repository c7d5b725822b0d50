"""A compute process as seen by the server, from fork to exit."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from timonel.processes.spawn import describe_exit
from timonel.processes.zygote import ZygoteError
from timonel.serving.batching.queue import BatchObservation, Observer
from timonel.serving.futures import await_settled
from timonel.serving.isolation.connection import Connection
from timonel.serving.isolation.messages import ProtocolError, unpack_signatures
from timonel.serving.isolation.packets import FrameKind, Message
from timonel.serving.isolation.zygote_client import ForkOrder, ZygoteClient
from timonel.serving.runtimes.base import Pending
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_TICK_S = 0.02
_STATUS_S = 2.0
_QUERY_S = 0.5
"""Maximum seconds to wait for a report of the process."""
_MAX_DESCRIBED = 16
"""Maximum number of in-flight requests to describe when the process ends."""

Outputs = dict[str, Array]


class ComputeProcess:
    """A process that has loaded a version, or is about to. Thread-safe.

    Args:
        zygote: The zygote that forks it.
        order: The version to load.
        on_end: Called with this object and the reason if a process that had loaded ends unasked.
            Called once, in a thread of this object that ends afterwards.
        hang_timeout_s: Kill the process if it has pending requests and sends nothing for this many
            seconds.
        observer: Called for each batch that it computes.

    Raises:
        StatusError: The process cannot be started, or cannot load the version.
    """

    def __init__(
        self,
        zygote: ZygoteClient,
        order: ForkOrder,
        on_end: Callable[[ComputeProcess, StatusError], None],
        hang_timeout_s: float | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer
        self._on_end = on_end
        self._hang_timeout_s = hang_timeout_s
        self._lock = threading.Lock()
        self._pending: dict[int, Response] = {}
        self._next = 1
        self._queries: dict[int, Future[int]] = {}
        self._last_message_at = 0.0
        self._unanswered: dict[int, Response] = {}
        self._sleeping = False
        self._closing = False
        self._kill_reason: str | None = None
        self._end: StatusError | None = None
        self.in_flight: list[str] = []
        """Signatures, types and shapes of the requests in flight when it ended."""
        self._loaded: Future[tuple[dict[str, Signature], str]] = Future()
        connection, self._child = zygote.fork(order)
        self._link = Connection(connection, limit_bytes=order.memory_limit)
        self._thread = threading.Thread(target=self._receive, name=order.name, daemon=True)
        self._thread.start()
        try:
            self.signatures, self.platform = self._loaded.result()
        except BaseException:
            self._thread.join()
            raise

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._child.pid or 0

    @property
    def end(self) -> StatusError | None:
        """Reason why the process ended; None while it runs."""
        return self._end

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Response:
        """Request the outputs of a signature.

        Args:
            signature: A key of `signatures`.
            inputs: Exactly the signature's inputs.
            outputs: Names of the requested outputs; None for all of them.
            deadline: Time after which the response is useless, on the monotonic clock.

        Returns:
            The future response; always completed exactly once.
        """
        with self._lock:
            number, self._next = self._next, self._next + 1
            response = Response(number, deadline, self._cancel, self._link.flush)
            response.request = (
                signature,
                [(name, each.dtype, each.shape) for name, each in inputs.items()],
            )
            end = self._end
            # Send a single request at once, because the process is idle.
            others = bool(self._pending)
            if end is None:
                if not self._unanswered:
                    self._last_message_at = response.submitted_at
                self._pending[number] = response
                self._unanswered[number] = response
        if end is not None:
            response.complete(end)
            return response
        try:
            fields = [signature, outputs if outputs is None else list(outputs), deadline]
            # Submitting never blocks, not even for memory.
            self._link.post(FrameKind.REQUEST, number, fields, inputs, timeout_s=0.0, turn=others)
        except StatusError as error:
            self._unanswered.pop(number, None)
            self._complete(number, error)
        if self._sleeping and (deadline is not None or self._hang_timeout_s is not None):
            self._link.wake()
        return response

    @property
    def queued(self) -> int:
        """Number of requests that wait to be computed, as the process reports it.

        Without an answer within `_QUERY_S`, or before it has ended, all pending ones.
        """
        with self._lock:
            if self._end is not None:
                return 0
            number, self._next = self._next, self._next + 1
            query = self._queries[number] = Future()
        try:
            self._link.post(FrameKind.QUEUED, number)
            return query.result(_QUERY_S)
        except (StatusError, TimeoutError):
            return len(self._pending)
        finally:
            self._queries.pop(number, None)

    def allocate(self, shape: Sequence[int], dtype: str) -> Array:
        """Return an uninitialized array that `submit` sends without a copy.

        Raises:
            StatusError: No shared memory is free.
        """
        return self._link.allocate(shape, dtype, timeout_s=0.0)

    def kill(self) -> None:
        """Kill the process; in-flight requests fail with ``UNAVAILABLE``."""
        self._child.kill()

    def close(self, timeout_s: float) -> None:
        """Drain in-flight requests, unload, and end; kill the process after a timeout."""
        deadline = time.monotonic() + timeout_s
        self._link.flush()
        await_settled(list(self._pending.values()), timeout_s)
        self._closing = True
        with contextlib.suppress(StatusError):
            self._link.post(FrameKind.CLOSE, 0)
        self._thread.join(max(0.1, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.kill()
            self._link.shut()
            self._thread.join()

    def _receive(self) -> None:
        try:
            self._link.serve(self._handle, self._watch)
        except ProtocolError as error:
            self._kill_because(f"sent invalid data ({error})")
        except Exception as error:  # noqa: BLE001 - a bug here must not leave requests waiting
            _LOG.exception("the connection to process %d failed", self.pid)
            self._kill_because(f"could not be read from ({type(error).__name__}: {error})")
        self._finish(self._cause())

    def _kill_because(self, why: str) -> None:
        self._kill_reason = f"was killed because it {why}"
        self.kill()

    def _cause(self) -> str:
        try:
            # Usually known already.
            status = self._child.wait(_STATUS_S)
            if status is None:
                self._kill_because("closed its connection")
                status = self._child.wait(_STATUS_S)
        except ZygoteError:
            return self._kill_reason or "ended together with its zygote"
        cause = "has ended" if status is None else describe_exit(os.waitstatus_to_exitcode(status))
        return self._kill_reason or cause

    def _finish(self, cause: str) -> None:
        error = StatusError(Code.UNAVAILABLE, f"The process of this model {cause}.")
        with self._lock:
            self._end = error
            pending = list(self._pending.values())
            self._pending.clear()
            # Includes cancelled requests: the process may still compute them.
            unanswered = list(self._unanswered.values())
        self.in_flight = [response.description for response in unanswered[:_MAX_DESCRIBED]]
        for response in pending:
            response.complete(error)
        self._link.close()
        self._child.close()
        if not self._loaded.done():
            self._loaded.set_exception(error)
        elif self._loaded.exception() is None and not self._closing:
            self._on_end(self, error)

    def _handle(self, message: Message) -> None:
        if message.kind is FrameKind.QUEUED:
            # Not a sign of life: the computation may hang.
            self._answer_query(message)
            return
        self._last_message_at = time.monotonic()
        self._unanswered.pop(message.number, None)
        if message.kind is FrameKind.ANSWER:
            self._complete(message.number, message.arrays, _parse_seconds(message.fields))
        elif message.kind is FrameKind.ERROR:
            error = _parse_error(message.fields)
            if self._loaded.done():
                self._complete(message.number, error, _parse_seconds(message.fields[2:]))
            else:
                self._loaded.set_exception(error)
        elif message.kind is FrameKind.LOADED and not self._loaded.done():
            self._loaded.set_result(unpack_signatures(message.fields, message.arrays))
        elif message.kind is FrameKind.BATCH:
            self._observe(message.fields)
        else:
            raise ProtocolError(f"unexpected message of type {message.kind.name}")

    def _answer_query(self, message: Message) -> None:
        query = self._queries.pop(message.number, None)
        if query is None:
            return
        if len(message.fields) != 1 or not isinstance(message.fields[0], int):
            raise ProtocolError(f"invalid number of waiting requests: {message.fields}")
        query.set_result(message.fields[0])

    def _observe(self, fields: Sequence[Any]) -> None:
        try:
            observation = BatchObservation(tuple(fields[0]), *fields[1:])
        except (TypeError, IndexError) as error:
            raise ProtocolError(f"invalid batch: {error}") from error
        if self._observer is not None:
            self._observer(observation)

    def _complete(
        self, number: int, outcome: Outputs | StatusError, compute_s: float | None = None
    ) -> None:
        response = self._pending.pop(number, None)
        if response is not None:
            response.complete(outcome, compute_s)

    def _cancel(self, number: int) -> None:
        if self._pending.pop(number, None) is not None:
            with contextlib.suppress(StatusError):
                self._link.post(FrameKind.CANCEL, number)

    def _watch(self) -> float | None:
        """Fail expired requests and detect hangs; return the maximum wait."""
        # Set before checking: a later `submit` then knows that it must wake this thread.
        self._sleeping = True
        pending = list(self._pending.values())
        limited = [response for response in pending if response.deadline is not None]
        if not limited and not (self._unanswered and self._hang_timeout_s is not None):
            return None
        self._sleeping = False
        now = time.monotonic()
        for response in limited:
            if response.deadline is not None and now >= response.deadline:
                self._pending.pop(response.number, None)
                response.complete(StatusError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))
                with contextlib.suppress(StatusError):
                    self._link.post(FrameKind.CANCEL, response.number)
        limit = self._hang_timeout_s
        if limit is not None and self._unanswered and now - self._last_message_at > limit:
            self._kill_because(f"did not respond for {limit:g} s")
        return _TICK_S


class Response(Pending):
    """Future outputs of a request. Cancelling it notifies the process.

    Args:
        number: The request's number.
        deadline: Time after which the response is useless.
        cancel: Called with the number when the request is cancelled.
        send: Sends the request, if not sent yet.
    """

    def __init__(
        self,
        number: int,
        deadline: float | None,
        cancel: Callable[[int], None],
        send: Callable[[], None],
    ) -> None:
        super().__init__()
        self._send = send
        self.number = number
        self.deadline = deadline
        self.submitted_at = time.monotonic()
        self._cancel = cancel
        self.request: tuple[str, list[tuple[str, Any, tuple[int, ...]]]] = ("", [])
        """Signature, and name, type and shape of inputs, for crash logs."""

    @property
    def description(self) -> str:
        """The request without values, such as ``serving_default(x: float32[1, 4])``."""
        signature, inputs = self.request
        return f"{signature}({', '.join(f'{n}: {t}{list(shape)}' for n, t, shape in inputs)})"

    def result(self, timeout: float | None = None) -> Outputs:
        """Wait for the outputs and return them."""
        self._flush()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the request and return its error, if any."""
        self._flush()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancel the request; return False if it has been answered."""
        cancelled = super().cancel()
        if cancelled:
            self._cancel(self.number)
        return cancelled

    def _flush(self) -> None:
        # The event loop that would send the request may be blocked by this wait.
        if not self.done():
            self._send()

    def complete(self, outcome: Outputs | StatusError, compute_s: float | None = None) -> None:
        """Complete the future, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        self.compute_s = compute_s
        if isinstance(outcome, StatusError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


def _parse_error(fields: Sequence[Any]) -> StatusError:
    try:
        code, text, _ = fields
        return StatusError(Code(code), str(text))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"invalid error: {error}") from error


def _parse_seconds(fields: Sequence[Any]) -> float | None:
    if len(fields) != 1 or not isinstance(fields[0], float | int | None):
        raise ProtocolError("invalid compute time")
    return fields[0]
