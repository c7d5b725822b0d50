"""A compute process as seen by the server, from fork to exit."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from timonel.serving.batching.observation import BatchObservation, Observer
from timonel.serving.drain import await_settled
from timonel.serving.isolation.connection import Connection
from timonel.serving.isolation.framing import Kind
from timonel.serving.isolation.messages import ProtocolError
from timonel.serving.isolation.metadata import from_fields
from timonel.serving.isolation.receiver import Message
from timonel.serving.isolation.responses import Answer, Outputs, error_of, seconds_of, too_late
from timonel.serving.isolation.zygote_client import ZygoteClient
from timonel.serving.isolation.zygote_requests import ForkOrder
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_TICK_S = 0.02
_STATUS_S = 2.0
_MAX_DESCRIBED = 16
"""Maximum number of in-flight requests to describe when the process ends."""


class ComputeProcess:
    """A process that has loaded a version, or is about to. Thread-safe.

    Args:
        parent: The zygote that forks it.
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
        parent: ZygoteClient,
        order: ForkOrder,
        on_end: Callable[[ComputeProcess, StatusError], None],
        hang_timeout_s: float | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer
        self._parent = parent
        self._on_end = on_end
        self._hang_timeout_s = hang_timeout_s
        self._lock = threading.Lock()
        self._asked: dict[int, Answer] = {}
        self._next = 1
        self._heard_at = 0.0
        self._owed: dict[int, Answer] = {}
        self._sleeping = False
        self._closing = False
        self._verdict: str | None = None
        self._end: StatusError | None = None
        self.in_flight: list[str] = []
        """Signatures, types and shapes of the requests in flight when it ended."""
        self._loaded: Future[tuple[dict[str, Signature], str]] = Future()
        ours, self.pid = parent.connect(order)
        self._link = Connection(ours, limit_bytes=order.memory_limit)
        self._thread = threading.Thread(target=self._receive, name=order.name, daemon=True)
        self._thread.start()
        try:
            self.signatures, self.platform = self._loaded.result()
        except BaseException:
            self._thread.join()
            raise

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
    ) -> Answer:
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
            answer = Answer(number, deadline, self._cancel, self._link.flush)
            answer.request = (
                signature,
                [(name, each.dtype, each.shape) for name, each in inputs.items()],
            )
            end = self._end
            # Send a single request at once, because the process is idle.
            others = bool(self._asked)
            if end is None:
                if not self._owed:
                    self._heard_at = answer.asked_at
                self._asked[number] = answer
                self._owed[number] = answer
        if end is not None:
            answer.give(end)
            return answer
        try:
            fields = [signature, outputs if outputs is None else list(outputs), deadline]
            # Submitting never blocks, not even for memory.
            self._link.post(Kind.REQUEST, number, fields, inputs, timeout_s=0.0, turn=others)
        except StatusError as error:
            self._owed.pop(number, None)
            self._give(number, error)
        if self._sleeping and (deadline is not None or self._hang_timeout_s is not None):
            self._link.wake()
        return answer

    def allocate(self, shape: Sequence[int], dtype: str) -> Array:
        """Return an uninitialized array that `submit` sends without a copy.

        Raises:
            StatusError: No shared memory is free.
        """
        return self._link.allocate(shape, dtype, timeout_s=0.0)

    def kill(self) -> None:
        """Kill the process; in-flight requests fail with ``UNAVAILABLE``."""
        self._parent.kill(self.pid)

    def close(self, timeout_s: float) -> None:
        """Drain in-flight requests, unload, and end; kill the process after a timeout."""
        deadline = time.monotonic() + timeout_s
        self._link.flush()
        await_settled(list(self._asked.values()), timeout_s)
        self._closing = True
        with contextlib.suppress(StatusError):
            self._link.post(Kind.CLOSE, 0)
        self._thread.join(max(0.1, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.kill()
            self._link.shut()
            self._thread.join()

    def _receive(self) -> None:
        try:
            self._link.serve(self._handle, self._watch)
        except ProtocolError as error:
            self._condemn(f"sent what makes no sense ({error})")
        except Exception as error:  # noqa: BLE001 - a bug here must not leave requests waiting
            _LOG.exception("the connection to process %d failed", self.pid)
            self._condemn(f"could not be listened to ({type(error).__name__}: {error})")
        self._finish(self._cause())

    def _condemn(self, why: str) -> None:
        self._verdict = f"was killed because it {why}"
        self.kill()

    def _cause(self) -> str:
        # Usually known already.
        cause = self._parent.cause(self.pid, _STATUS_S)
        if cause is None:
            self._condemn("has left its connection")
            cause = self._parent.cause(self.pid, _STATUS_S)
        return self._verdict or cause or "has ended"

    def _finish(self, cause: str) -> None:
        error = StatusError(Code.UNAVAILABLE, f"The process of this model {cause}.")
        with self._lock:
            self._end = error
            asked = list(self._asked.values())
            self._asked.clear()
            # Includes cancelled requests: the process may still compute them.
            owed = list(self._owed.values())
        self.in_flight = [answer.description for answer in owed[:_MAX_DESCRIBED]]
        for answer in asked:
            answer.give(error)
        self._link.close()
        if not self._loaded.done():
            self._loaded.set_exception(error)
        elif self._loaded.exception() is None and not self._closing:
            self._on_end(self, error)

    def _handle(self, message: Message) -> None:
        self._heard_at = time.monotonic()
        self._owed.pop(message.number, None)
        if message.kind is Kind.ANSWER:
            self._give(message.number, message.arrays, seconds_of(message.fields))
        elif message.kind is Kind.ERROR:
            error = error_of(message.fields)
            if self._loaded.done():
                self._give(message.number, error, seconds_of(message.fields[2:]))
            else:
                self._loaded.set_exception(error)
        elif message.kind is Kind.LOADED and not self._loaded.done():
            self._loaded.set_result(from_fields(message.fields, message.arrays))
        elif message.kind is Kind.BATCH:
            self._tell(message.fields)
        else:
            raise ProtocolError(f"expected an answer, got {message.kind.name}")

    def _tell(self, fields: Sequence[Any]) -> None:
        try:
            observation = BatchObservation(tuple(fields[0]), *fields[1:])
        except (TypeError, IndexError) as error:
            raise ProtocolError(f"expected a batch, got {error}") from error
        if self._observer is not None:
            self._observer(observation)

    def _give(
        self, number: int, outcome: Outputs | StatusError, compute_s: float | None = None
    ) -> None:
        answer = self._asked.pop(number, None)
        if answer is not None:
            answer.give(outcome, compute_s)

    def _cancel(self, number: int) -> None:
        if self._asked.pop(number, None) is not None:
            with contextlib.suppress(StatusError):
                self._link.post(Kind.CANCEL, number)

    def _watch(self) -> float | None:
        """Fail expired requests and detect hangs; return the maximum wait."""
        # Set before checking: a later `submit` then knows that it must wake this thread.
        self._sleeping = True
        asked = list(self._asked.values())
        watched = [answer for answer in asked if answer.deadline is not None]
        if not watched and not (self._owed and self._hang_timeout_s is not None):
            return None
        self._sleeping = False
        now = time.monotonic()
        for answer in watched:
            if answer.deadline is not None and now >= answer.deadline:
                self._asked.pop(answer.number, None)
                answer.give(too_late())
                with contextlib.suppress(StatusError):
                    self._link.post(Kind.CANCEL, answer.number)
        limit = self._hang_timeout_s
        if limit is not None and self._owed and now - self._heard_at > limit:
            self._condemn(f"had said nothing for {limit:g} s")
        return _TICK_S
