"""Run a model on batches, and measure how long they take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from timonel.serving.batching.batcher import QueueKey
from timonel.serving.batching.merge import check_outputs, merge, padded_size, split
from timonel.serving.batching.policy import APART, BatchingPolicy
from timonel.serving.batching.request import Answer, BatchObservation, Observer, Piece
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.status import StatusError

_LOG = logging.getLogger(__name__)


class BatchExecutor:
    """Executor of batches, which completes their requests. Thread-safe.

    Args:
        model: The model that computes.
        policy: The batching policy; informed of every run.
        observer: Called for each batch.
        clock: Returns the present time in seconds, on the clock of deadlines.
    """

    def __init__(
        self,
        model: LoadedModel,
        policy: BatchingPolicy,
        observer: Observer | None,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._policy = policy
        self._observer = observer
        self._clock = clock

    def run_batch(self, key: QueueKey, pieces: Sequence[Piece]) -> None:
        """Compute a batch, and complete its requests."""
        started = self._clock()
        for piece in pieces:
            piece.request.queue_s = started - piece.request.arrived
        if key.group == APART:
            (piece,) = pieces
            answer = self._model.run(key.signature, piece.inputs, key.outputs)
            self._policy.ran_apart(key.signature, piece.inputs)
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
