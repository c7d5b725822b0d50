"""A loaded version that queues its requests, and computes them in threads of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from timonel.serving.batching.merge import check_outputs, merge, padded_size, split
from timonel.serving.batching.policy import BatchingPolicy
from timonel.serving.batching.queue import (
    ALONE,
    Answer,
    Batch,
    BatchObservation,
    Observer,
    QueuedRequest,
    Queues,
)
from timonel.serving.runtimes.base import LoadedModel, VersionFolder
from timonel.serving.signature import Array
from timonel.serving.status import HungError, NotStartedError, StatusError

_LOG = logging.getLogger(__name__)
HUNG_S = 300.0
"""Time after which a version whose threads all compute is taken to hang."""


class ScheduledModel(LoadedModel):
    """Version that schedules its requests, alone or in batches. Thread-safe.

    Threads start when first needed, so that a process can fork before. A version that hangs holds
    up only itself.

    Args:
        model: The model that computes; owned from now on.
        observer: Called for each batch of a signature that is batched.
    """

    def __init__(
        self,
        model: LoadedModel,
        policy: BatchingPolicy,
        threads: int,
        thread_name: str = "model",
        observer: Observer | None = None,
    ) -> None:
        self.signatures = model.signatures
        self._model = model
        self._policy = policy
        self._max_threads = threads
        self._thread_name = thread_name
        self._observer = observer
        self._lock = threading.Lock()
        self._queues = Queues(policy.queue, policy.max_queued)
        self._threads: list[threading.Thread] = []
        self._idle: list[threading.Lock] = []
        """A lock for each waiting thread, which wakes up when it is released."""
        self._running: dict[threading.Lock, float] = {}
        """Start of what each thread computes."""
        self._closing = False

    @property
    def platform(self) -> str:
        """Platform name of the model."""
        return self._model.platform

    @property
    def restarts(self) -> int:
        """Number of restarts of the process that computes the model."""
        return self._model.restarts

    @property
    def outage(self) -> StatusError | None:
        """Error that makes the model unavailable; None if it is available."""
        began = list(self._running.values())
        if len(began) >= self._max_threads and time.monotonic() - max(began) >= HUNG_S:
            return HungError(f"All its threads have computed for more than {HUNG_S:g} s.")
        return self._model.outage

    @property
    def independent(self) -> frozenset[str]:
        """Signatures whose rows are known to be independent."""
        return self._policy.independent

    @property
    def queued(self) -> int:
        """Number of requests that wait to be computed."""
        return self._queues.waiting

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Compute the outputs of a signature; see `submit`."""
        return self.submit(signature, inputs, outputs).result()

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> QueuedRequest:
        """Start computing the outputs of a signature; see `LoadedModel.run`.

        Args:
            deadline: When the answer becomes useless, in seconds of `time.monotonic`.

        Returns:
            The future outputs, or a `StatusError`. A request that is cancelled before it starts is
            never computed.
        """
        names = tuple(self.signatures[signature].outputs if outputs is None else outputs)
        request = QueuedRequest(signature, inputs, names, time.monotonic(), deadline, self._remove)
        try:
            request.rows, request.key = self._policy.place(signature, inputs, names)
            with self._lock:
                self._add(request)
        except Exception as error:  # noqa: BLE001 - becomes the response
            request.set_exception(error)
        return request

    def close(self) -> None:
        """Answer queued requests, then release the model."""
        with self._lock:
            self._closing = True
            while self._idle:
                self._idle.pop().release()
        for thread in self._threads:
            thread.join()
        self._model.close()

    def _add(self, request: QueuedRequest) -> None:
        """Queue a request, and wake or start a thread; called with the lock held."""
        if self._closing:
            raise NotStartedError("The version has been unloaded.")
        if not self._idle and len(self._threads) < self._max_threads:
            name = f"{self._thread_name}_{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._queues.add(request)
        if self._idle:
            self._idle.pop().release()

    def _remove(self, request: QueuedRequest) -> None:
        with self._lock:
            self._queues.remove(request)

    def _work(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        while True:
            with self._lock:
                now = time.monotonic()
                queues, closing = self._queues, self._closing
                batch = queues.take(now, closing=closing) if queues.waiting else None
                if batch is None:
                    if closing:
                        return
                    due_at = queues.due_at() if queues.waiting else None
                    self._idle.append(wake)
                elif queues.waiting and self._idle:
                    self._idle.pop().release()
            if batch is not None:
                self._running[wake] = now
                self._compute(batch)
                del self._running[wake]
                del batch  # its requests must not wait for the next batch to be freed
            elif due_at is None:
                wake.acquire()
            elif not wake.acquire(timeout=min(max(0.0, due_at - now), threading.TIMEOUT_MAX)):
                with self._lock:
                    if wake in self._idle:
                        self._idle.remove(wake)
                    else:
                        wake.acquire()

    def _compute(self, batch: Batch) -> None:
        """Compute requests taken from a queue, and complete them."""
        for request in batch.late:
            if request.set_running_or_notify_cancel():
                request.set_exception(self._policy.late)
        requests = [each for each in batch.requests if each.set_running_or_notify_cancel()]
        if not requests:
            return
        if requests[0].key == ALONE:
            for request in requests:
                self._run_alone(request)
            return
        try:
            self._run_batch(requests)
        except BaseException as error:  # noqa: BLE001 - becomes the responses
            for request in requests:
                if not request.done():
                    request.set_exception(error)

    def _run_alone(self, request: QueuedRequest) -> None:
        began = time.monotonic()
        answer: Answer | None = None
        try:
            answer = self._model.run(request.signature, request.inputs, request.outputs)
        except BaseException as error:  # noqa: BLE001 - becomes the response
            request.compute_s += time.monotonic() - began
            request.set_exception(error)
        else:
            request.compute_s += time.monotonic() - began
            request.set_result(answer)

    def _run_batch(self, requests: Sequence[QueuedRequest]) -> None:
        """Compute a batch, and complete its requests."""
        signature = requests[0].signature
        began = time.monotonic()
        rows = sum(request.rows for request in requests)
        padding = padded_size(rows, self._policy.allowed_sizes) - rows if requests[-1].rows else 0
        failure: Exception | None = None
        try:
            found, compute_s = self._run_merged(requests, rows, padding)
        except Exception as error:  # noqa: BLE001 - passed to all affected requests
            failure, compute_s = error, time.monotonic() - began
        else:
            sizes = [request.rows for request in requests]
            parts = split(found, sizes, whole=len(requests) == 1 and not padding)
            for request, part in zip(requests, parts, strict=True):
                request.compute_s += compute_s
                request.set_result({name: part[name] for name in request.outputs})
            self._policy.computed(signature, rows, compute_s)
        queue_s = tuple(began - request.arrived for request in requests)
        self._observe(
            BatchObservation(queue_s, compute_s, rows, padding, signature, failure is not None)
        )
        if failure is not None:
            self._fail(requests, failure)
            del failure  # its traceback refers to this frame

    def _run_merged(
        self, requests: Sequence[QueuedRequest], rows: int, padding: int
    ) -> tuple[Answer, float]:
        signature, outputs = requests[0].signature, sorted(requests[0].outputs)
        inputs = merge(
            [request.inputs for request in requests],
            padding,
            pad_shapes=self._policy.pad_shapes,
            tensors={n: spec.tensor for n, spec in self.signatures[signature].inputs.items()},
        )
        began = time.monotonic()
        found = self._model.run(signature, inputs, outputs)
        compute_s = time.monotonic() - began
        if len(requests) > 1 or self._policy.checks_outputs:
            try:
                check_outputs(found, rows + padding)
            except StatusError:
                self._policy.misfit(signature)
                raise
        return found, compute_s

    def _fail(self, requests: Sequence[QueuedRequest], failure: Exception) -> None:
        """Fail the requests of a batch, or retry them one by one."""
        # Invalid rows of one request must not fail the others of its batch.
        retries = len(requests) > 1 and self._policy.retries_alone
        for request in requests:
            if not retries:
                request.set_exception(failure)
            elif request.is_late(time.monotonic()):
                request.set_exception(self._policy.late)
            else:
                self._run_alone(request)

    def _observe(self, observation: BatchObservation) -> None:
        if self._observer is None:
            return
        try:
            self._observer(observation)
        except Exception:  # noqa: BLE001 - a bug there must not fail requests
            _LOG.exception("the observer of batches failed")


Load = Callable[[VersionFolder], ScheduledModel]
