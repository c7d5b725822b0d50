"""A loaded version that batches its requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from timonel.serving.batching.batcher import Batcher, QueueKey
from timonel.serving.batching.merge import check_outputs, merge, padded_size, split
from timonel.serving.batching.policy import APART, BatchingPolicy
from timonel.serving.batching.queue import (
    Answer,
    Batch,
    BatchObservation,
    BatchRequest,
    Observer,
    Piece,
    Queue,
)
from timonel.serving.futures import await_settled
from timonel.serving.runtimes.base import LoadedModel, WrappedModel, refused
from timonel.serving.signature import Array
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)


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
        self._observer = observer
        self._clock = clock
        self._outstanding: dict[Future[Answer], tuple[QueueKey, BatchRequest]] = {}
        self._gate = threading.Lock()
        self._closing = False
        batcher.attach()

    @property
    def queued(self) -> int:
        """Number of requests that wait for a batch."""
        outstanding = list(self._outstanding.values())
        return sum(request.is_waiting for _, request in outstanding)

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[Answer]:
        """Compute the outputs of a signature asynchronously.

        Cancelling the future removes the request from the queue.
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
                self._run_batch(key, pieces)
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

    def _run_batch(self, key: QueueKey, pieces: Sequence[Piece]) -> None:
        """Compute a batch, and complete its requests."""
        started = self._clock()
        for piece in pieces:
            piece.request.queue_s = started - piece.request.arrived
        if key.group == APART:
            (piece,) = pieces
            answer = self._model.run(key.signature, piece.inputs, key.outputs)
            piece.request.add_compute_time(self._clock() - started)
            piece.request.answer(piece, answer)
            return
        rows = sum(piece.rows for piece in pieces)
        padding = padded_size(rows, self._policy.allowed_sizes) - rows if pieces[-1].rows else 0
        failure: Exception | None = None
        try:
            found, compute_s = self._run_merged(key, pieces, rows, padding)
        except Exception as error:  # noqa: BLE001 - passed to all affected requests
            failure, compute_s = error, self._clock() - started
        else:
            for piece in pieces:
                piece.request.add_compute_time(compute_s)
            parts = split(found, [p.rows for p in pieces], whole=len(pieces) == 1 and not padding)
            for piece, part in zip(pieces, parts, strict=True):
                piece.request.answer(piece, part)
            self._policy.computed(key.signature, rows, compute_s)
        queue_s = tuple(piece.request.queue_s for piece in pieces)
        has_failed = failure is not None
        self._observe(
            BatchObservation(queue_s, compute_s, rows, padding, key.signature, has_failed)
        )
        if failure is not None:
            self._fail(key, pieces, failure)
            del failure  # its traceback refers to this frame

    def _run_merged(
        self, key: QueueKey, pieces: Sequence[Piece], rows: int, padding: int
    ) -> tuple[Answer, float]:
        specs = self._model.signatures[key.signature].inputs
        inputs = merge(
            [piece.inputs for piece in pieces],
            padding,
            pad_shapes=self._policy.pad_shapes,
            tensors={name: spec.tensor for name, spec in specs.items()},
        )
        began = self._clock()
        found = self._model.run(key.signature, inputs, key.outputs)
        compute_s = self._clock() - began
        if len(pieces) > 1 or self._policy.checks_outputs:
            try:
                check_outputs(found, rows + padding)
            except StatusError:
                self._policy.misfit(key.signature)
                raise
        return found, compute_s

    def _fail(self, key: QueueKey, pieces: Sequence[Piece], failure: Exception) -> None:
        """Fail the requests of a batch, or retry them one by one."""
        if len(pieces) == 1 or not self._policy.retries_apart:
            for piece in pieces:
                piece.request.fail(failure)
            return
        # Invalid rows of one request must not fail the others of its batch.
        now = self._clock()
        for piece in pieces:
            if piece.request.is_late(now):
                piece.request.fail(self._policy.late)
                continue
            try:
                found = self._model.run(key.signature, piece.request.inputs, key.outputs)
            except Exception as error:  # noqa: BLE001 - becomes the response
                piece.request.fail(error)
            else:
                piece.request.answer(piece, found)

    def _observe(self, observation: BatchObservation) -> None:
        if self._observer is None:
            return
        try:
            self._observer(observation)
        except Exception:  # noqa: BLE001 - a bug there must not fail requests
            _LOG.exception("the observer of batches failed")
