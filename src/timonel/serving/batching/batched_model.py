"""A loaded version that batches its requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from timonel.serving.batching.batcher import Batcher, QueueKey
from timonel.serving.batching.execution import BatchExecutor
from timonel.serving.batching.policy import BatchingPolicy
from timonel.serving.batching.queue import Batch, Queue
from timonel.serving.batching.request import Answer, BatchRequest, Observer
from timonel.serving.futures import await_settled
from timonel.serving.runtimes.base import LoadedModel, WrappedModel, refused
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError


class BatchingModel(WrappedModel):
    """Model that batches requests to another model. Thread-safe.

    Args:
        model: The model that computes; owned from now on.
        policy: Decides which requests to batch, and when.
        batcher: The batching threads; shared with other models.
        observer: Called for each batch.
        clock: Returns the present time in seconds, on the clock of deadlines.
    """

    def __init__(
        self,
        model: LoadedModel,
        policy: BatchingPolicy,
        batcher: Batcher,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.signatures = model.signatures
        self._model = model
        self._policy = policy
        self._batcher = batcher
        self._executor = BatchExecutor(model, policy, observer, clock)
        self._clock = clock
        self._outstanding: dict[Future[Answer], tuple[QueueKey, BatchRequest]] = {}
        self._gate = threading.Lock()
        self._closing = False
        batcher.attach()

    def run(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Answer:
        """Compute the outputs of a signature, batched with other requests.

        Raises:
            StatusError: The model rejected the request or failed, the queue is full, or the
                deadline passed.
        """
        return self._wait(self.submit(signature, inputs, outputs, deadline), deadline)

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[Answer]:
        """Compute the outputs of a signature asynchronously.

        Takes the arguments of `run`. The future has the result or error of `run`; cancelling it
        removes the request from the queue.
        """
        try:
            rows, group = self._policy.place(signature, inputs)
        except Exception as error:  # noqa: BLE001 - becomes the response
            return refused(error)
        names = tuple(self.signatures[signature].outputs if outputs is None else outputs)
        request = BatchRequest(inputs, names, rows, self._clock(), deadline)
        self._enter(QueueKey(self, signature, tuple(sorted(names)), group), request)
        return request.future

    def close(self) -> None:
        """Answer queued requests, then release the model."""
        with self._gate:
            self._closing = True
            outstanding = list(self._outstanding)
        self._batcher.flush(self)
        await_settled(outstanding)
        self._batcher.detach()
        self._model.close()

    def compute(self, key: QueueKey, batch: Batch) -> None:
        """Compute requests taken from a queue; called by the batcher."""
        for request in batch.late:
            if request.claim():
                request.fail(self._policy.late)
        pieces = [piece for piece in batch.pieces if piece.request.claim()]
        try:
            if pieces:
                self._executor.run_batch(key, pieces)
        except BaseException as error:  # noqa: BLE001 - becomes the responses
            for piece in pieces:
                piece.request.fail(error)

    def _enter(self, key: QueueKey, request: BatchRequest) -> None:
        """Add a request to its queue."""
        future = request.future
        try:
            with self._gate:
                self._check_open()
                self._outstanding[future] = (key, request)
            future.add_done_callback(self._on_done)
            self._batcher.submit(key, lambda: self._queue(key), request)
        except StatusError as error:
            self._outstanding.pop(future, None)
            request.fail(error)

    def _check_open(self) -> None:
        if self._closing:
            raise StatusError(Code.UNAVAILABLE, "The version is being unloaded")

    def _queue(self, key: QueueKey) -> Queue:
        queue = self._policy.queue(key.signature, key.group)
        if self._closing:
            queue.close()
        return queue

    def _on_done(self, future: Future[Answer]) -> None:
        key, request = self._outstanding.pop(future, (None, None))
        if future.cancelled() and key is not None and request is not None:
            self._batcher.remove(key, request)

    def _wait(self, future: Future[Answer], deadline: float | None) -> Answer:
        if deadline is None or self._policy.waits_for_late:
            return future.result()
        try:
            return future.result(max(0.0, deadline - self._clock()))
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()
            future.cancel()
            raise StatusError(self._policy.late.code, self._policy.late.message) from None
