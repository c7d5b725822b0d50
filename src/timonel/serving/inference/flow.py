"""The flow of a request through all protocols: decode, compute, encode, answer, record.

A protocol is a `Codec`. The flow finds the version, keeps the deadline, cancels, limits the
response and measures. It works with event-loop callbacks: a coroutine per request would cost as
much CPU as the rest of a small request. Slow work on large data runs in a pool, and no request
holds a thread while it waits for its model.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from timonel.serving.asgi import Receive, on_disconnect
from timonel.serving.futures import AT_ONCE_BYTES, pool_for, when_finished
from timonel.serving.inference.context import (
    Correlation,
    LoggedRequest,
    Meter,
    Observation,
    Recorder,
)
from timonel.serving.inference.signature_check import checked_run, drop_column
from timonel.serving.manager.catalogue import Catalogue, ModelSpec, Servable
from timonel.serving.signature import DEFAULT_SIGNATURE, INIT_OP, Array, Signature, bytes_of
from timonel.serving.status import Code, NotStartedError, StatusError, as_status

Outputs = dict[str, Array]
T = TypeVar("T")
S = TypeVar("S")


class SignatureRun(NamedTuple):
    """A signature to run: inputs by name, and the requested outputs; empty for all."""

    signature: Signature
    inputs: Mapping[str, Array]
    outputs: Sequence[str] = ()


class Call:
    """A request's use of a version: find a signature, then run it."""

    def __init__(
        self,
        servable: Servable,
        observation: Observation | None = None,
        recorder: Recorder | None = None,
        deadline: float | None = None,
    ) -> None:
        self._servable = servable
        self._recorder = recorder
        self.observation = observation or Observation("", "", "")
        self.deadline = deadline
        self.name = servable.name
        self.version = servable.version
        self.missing = servable.missing
        """Value for a missing cell, by input of the default signature."""
        # The server's spelling: those of clients could fill the metrics with names.
        self.observation.model = servable.name
        self.observation.version = servable.version

    def close(self) -> None:
        """Stop using the version, which may then be unloaded. Call it once."""
        self._servable.release()

    def find(self, signature_name: str) -> Signature | None:
        """Return a signature, or None; an empty name means the default one."""
        if signature_name == INIT_OP:
            return None
        return self._servable.model.signatures.get(signature_name or DEFAULT_SIGNATURE)

    def signature(self, signature_name: str) -> Signature:
        """Return a signature; an empty name means the default one."""
        found = self.find(signature_name)
        if found is None:
            name = signature_name or DEFAULT_SIGNATURE
            raise StatusError(
                Code.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        return found

    def predict(
        self,
        signature: Signature,
        inputs: Mapping[str, Array],
        output_filter: Sequence[str] = (),
    ) -> Outputs:
        """Run a signature of this version, and wait for it; see `start`."""
        return self.start(SignatureRun(signature, inputs, output_filter)).result()

    def start(self, run: SignatureRun) -> Execution:
        """Start running a signature of this version, without waiting for it."""
        signature, inputs, output_filter = run
        shaped, outputs, column = checked_run(signature, inputs, output_filter)
        self.observation.signature = signature.name
        self.observation.rows += _rows(inputs)
        began = time.monotonic()
        future = self._servable.model.submit(signature.name, shaped, outputs, self.deadline)
        return Execution(self, run, future, began, column)

    def record(self, run: SignatureRun, outputs: Outputs) -> None:
        """Log a successful run if the recorder samples it; keep outputs to be compared."""
        if self.observation.outputs is not None:
            self.observation.outputs.append(outputs)
        name, api = self.name, self.observation.api
        recorder = self._recorder
        if recorder is not None and name in recorder.sampled and recorder.wants(name):
            signature, inputs, chosen = run
            recorder.record(
                LoggedRequest(name, self.version, signature, api, inputs, outputs, chosen)
            )


@dataclass(eq=False, slots=True)
class Execution:
    """A running signature; created by `Call.start`.

    Args:
        future: The model's future outputs. Cancel it if they are no longer needed.
        column: The shape of the client's input if it lacked a dimension of size 1.
    """

    _call: Call
    _run: SignatureRun
    future: Future[Outputs]
    _began: float
    _column: tuple[int, ...] | None

    def result(self) -> Outputs:
        """Return the outputs; blocks until the future is done. Call it once."""
        future = self.future
        try:
            # Not `result`, which would add frames to the stored error that refer to this future.
            error = future.exception()
        except CancelledError:
            error = StatusError(Code.CANCELLED, "the request was cancelled")
        compute_s = getattr(future, "compute_s", None)
        measure(self._call.observation, self._began, time.monotonic(), compute_s)
        if error is not None:
            # A bug in a runtime must fail one request, not the connection.
            raise as_status(error, f"model {self._call.name}")
        outputs = future.result()
        if self._column is not None:
            outputs = drop_column(outputs, self._column)
        self._call.record(self._run, outputs)
        return outputs


def measure(
    observation: Observation, began: float, ended: float, compute_s: float | None = None
) -> None:
    """Add an execution; a request may need several. Overlapping ones count once."""
    if observation.computed is not None:
        began, ended = max(began, observation.computed), max(ended, observation.computed)
    observation.computed = ended
    observation.run_s += ended - began
    if compute_s is not None:  # if the model reports it
        observation.queue_s += max(0.0, ended - began - compute_s)


class Codec(abc.ABC, Generic[T]):
    """One request in a protocol: its bytes to runs of a version, and outputs to its response."""

    entrypoint: ClassVar[str]
    """``REST`` or ``GRPC``."""
    overdue = "Deadline Exceeded"
    """Message for a request past its deadline."""
    api: str
    """The method, as TensorFlow Serving labels it: ``predict`` over REST, ``Predict`` over gRPC."""
    model = ""
    """The model's name as the client gave it; `prepare` may set it."""
    size: int
    """Bytes to decode."""
    timeout_s: float | None = None
    """The client's limit; `prepare` may set it."""

    @abc.abstractmethod
    def prepare(self, acquire: Callable[[ModelSpec], Call]) -> Sequence[SignatureRun]:
        """Decode the request. May run in a thread of the pool.

        Args:
            acquire: Acquires the version until the runs have ended; call it at most once.
        """

    @abc.abstractmethod
    def encode(self, call: Call, outputs: Sequence[Outputs]) -> T:
        """Encode the outputs of all runs. May run in a thread of the pool."""


@dataclass(eq=False)
class Flow:
    """What all requests of a server share. For one event loop.

    Args:
        max_response: Largest response in bytes of its tensors; None for no limit.
        max_computing: Most bytes of large requests that are decoded, queued or computed at once;
            None for no limit.
    """

    catalogue: Catalogue
    pool: Executor
    monitor: Meter
    recorder: Recorder | None = None
    max_response: int | None = None
    max_computing: int | None = None
    held: int = 0
    """Bytes of these requests."""

    async def run(
        self,
        codec: Codec[T],
        timeout_s: float | None = None,
        correlation: Correlation | None = None,
        receive: Receive | None = None,
    ) -> T:
        """Answer a request. Cancelling this cancels the request.

        Args:
            timeout_s: Seconds until the response becomes useless.
            receive: Reports that the client has disconnected, which cancels the request.
        """
        reply: asyncio.Future[T | StatusError] = asyncio.get_running_loop().create_future()
        exchange = RequestExchange(self, codec, partial(_set, reply))
        exchange.begin(timeout_s, correlation)
        if not reply.done():

            def give_up() -> None:
                exchange.cancel()
                _set(reply, StatusError(Code.CANCELLED, "the request was cancelled"))

            try:
                with on_disconnect(receive, give_up):
                    await reply
            finally:
                exchange.cancel()
        result = reply.result()
        if isinstance(result, StatusError):
            raise copy.copy(result)
        return result

    @contextlib.contextmanager
    def observed(
        self, entrypoint: str, api: str, model: str = "", correlation: Correlation | None = None
    ) -> Iterator[Observation]:
        """Record a request that runs no model, and turn unexpected errors into statuses."""
        observation = self.monitor.begin(entrypoint, api, model, correlation)
        code = Code.OK
        try:
            yield observation
        except asyncio.CancelledError:
            code = Code.CANCELLED
            raise
        except Exception as error:
            # Another name, or the old traceback, would tie the frames and the request to an error.
            error.__traceback__, error = None, as_status(error, api or "a request")
            code = error.code
            raise error from None
        finally:
            self.monitor.end(observation, code)


@dataclass(eq=False, slots=True)
class RequestExchange(Generic[T]):
    """A request from begin to reply. For one event loop.

    Args:
        reply: Called once with the response, perhaps before `begin` returns; never after `cancel`.
    """

    _flow: Flow
    _codec: Codec[T]
    _reply: Callable[[T | StatusError], None] | None
    _deadline: float | None = None
    _observation: Observation = field(init=False)
    _call: Call | None = None
    _pending: Future[Any] | None = None
    _runs: Sequence[Execution] = ()
    _outputs: list[Outputs] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _held: int = 0

    def begin(self, timeout_s: float | None = None, correlation: Correlation | None = None) -> None:
        """Decode the request and start its runs; see `Flow.run`."""
        codec, monitor = self._codec, self._flow.monitor
        self._observation = monitor.begin(codec.entrypoint, codec.api, codec.model, correlation)
        if timeout_s is not None:
            self._deadline = time.monotonic() + timeout_s
        if codec.size > AT_ONCE_BYTES and (refusal := self._hold(codec.size)):
            self._fail(refusal)
            return
        if timeout_s is None or self._is_in_time(timeout_s):
            self._by_size(codec.size, partial(codec.prepare, self._acquire), self._start)

    def cancel(self) -> None:
        """Cancel a request whose client has disconnected; no effect after the response."""
        if self._reply is not None:
            self._end(Code.CANCELLED)

    def _hold(self, size: int) -> StatusError | None:
        """Count bytes of a large request, unless it is too large, or others leave it no room."""
        flow, total, most = self._flow, self._held + size, self._flow.max_computing
        if most is not None and total > most:
            return StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"The request counts as {total} bytes, more than --max-receiving allows for all.",
            )
        if most is not None and flow.held + size > most:
            return NotStartedError("Too many bytes of requests are computed at once.")
        flow.held += size
        self._held = total
        return None

    def _is_in_time(self, timeout_s: float) -> bool:
        """Set the timer; False if the request has expired."""
        if timeout_s <= 0:
            self._expire()
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)
        return True

    def _by_size(self, size: int, work: Callable[[], S], then: Callable[[S], None]) -> None:
        """Run ``work``, in a pool if large, and pass on its result."""
        if size > AT_ONCE_BYTES:
            future = self._pending = pool_for(self._flow.pool, size).submit(work)
            when_finished(future, partial(self._resume, then))
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
        else:
            then(result)

    def _resume(self, then: Callable[[S], None], future: Future[S]) -> None:
        if self._reply is None:
            self._release()  # if cancelled while the pool acquired the version
            return
        self._pending = None
        error = future.exception()
        if isinstance(error, Exception):
            self._fail(error)
        else:
            then(future.result())

    def _acquire(self, spec: ModelSpec) -> Call:
        flow, observation = self._flow, self._observation
        servable = flow.catalogue.acquire(spec)
        call = self._call = Call(servable, observation, flow.recorder, self._deadline)
        return call

    def _release(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.close()

    def _start(self, runs: Sequence[SignatureRun]) -> None:
        call, timeout_s = self._call, self._codec.timeout_s
        assert call is not None, "prepare has acquired a version"
        if timeout_s is not None:
            deadline = time.monotonic() + timeout_s
            if call.deadline is None or deadline < call.deadline:
                call.deadline = deadline
                if not self._is_in_time(timeout_s):
                    return
        # Few bytes may make large arrays: unpacked, or a value that fills a tensor.
        unfolded = sum([_size_of(run.inputs) for run in runs]) - self._held
        if unfolded > AT_ONCE_BYTES and (refusal := self._hold(unfolded)):
            self._fail(refusal)
            return
        started: list[Execution] = []
        self._runs = started
        try:
            for run in runs:
                started.append(call.start(run))  # noqa: PERF401 - those before a failure are kept
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
        else:
            self._finish()

    def _finish(self, _: Future[Outputs] | None = None) -> None:
        """Encode the outputs once all runs are done, unless the request has been answered."""
        call = self._call
        if self._reply is None or call is None:
            return
        outputs = self._outputs
        try:
            for run in self._runs[len(outputs) :]:
                if not run.future.done():
                    when_finished(run.future, self._finish)
                    return
                outputs.append(run.result())
            size = sum([_size_of(each) for each in outputs])
            self._check_size(size)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            self._fail(error)
            return
        self._release()
        answer = partial(self._answer, Code.OK)
        self._by_size(size, partial(self._codec.encode, call, outputs), answer)

    def _check_size(self, size: int) -> None:
        limit = self._flow.max_response
        if limit is not None and size > limit:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED,
                f"The response has tensors of {size} bytes; the limit is {limit}. Send fewer rows "
                "in a request, or start the server with a larger --max-response.",
            )

    def _expire(self) -> None:
        if self._reply is not None:
            self._fail(StatusError(Code.DEADLINE_EXCEEDED, self._codec.overdue))

    def _fail(self, error: Exception) -> None:
        status = as_status(error, f"{self._codec.api} of {self._codec.model}")
        self._answer(status.code, status)

    def _answer(self, code: Code, answer: T | StatusError) -> None:
        reply = self._reply
        self._end(code)
        if reply is not None:
            reply(answer)

    def _end(self, code: Code) -> None:
        self._reply = None
        self._flow.held -= self._held
        self._held = 0
        if self._timer is not None:
            self._timer.cancel()
        if self._pending is not None:
            self._pending.cancel()
        for run in self._runs:
            if not run.future.done():
                run.future.cancel()
        self._release()
        # Break reference cycles: futures refer to their callbacks, and thus to this object.
        self._runs, self._pending, self._outputs = (), None, []
        observation = self._observation
        observation.model = observation.model or self._codec.model
        self._flow.monitor.end(observation, code)


def _set(reply: asyncio.Future[Any], answer: Any) -> None:
    # The task that awaits the future may have been cancelled.
    if not reply.done():
        reply.set_result(answer)


def _rows(inputs: Mapping[str, Array]) -> int:
    """Return the first input's row count; 1 for scalars or no input."""
    for array in inputs.values():
        return array.shape[0] if array.ndim else 1
    return 1


def _size_of(arrays: Mapping[str, Array]) -> int:
    return sum([bytes_of(a) if a.dtype == object else a.nbytes for a in arrays.values()])
