"""Run a model on batches, and measure how long they take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from timonel.serving.batching.merge import check_outputs, merge, padded_size, split
from timonel.serving.batching.observation import BatchObservation, Observer
from timonel.serving.batching.policy import APART, Policy
from timonel.serving.batching.queue import Piece
from timonel.serving.batching.request import Answer, Request
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.signature import Array
from timonel.serving.status import StatusError

_LOG = logging.getLogger(__name__)
Pieces = list[Piece[Request]]


class Computing:
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
        policy: Policy,
        observer: Observer | None,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._policy = policy
        self._observer = observer
        self._clock = clock

    def batch(
        self, signature: str, outputs: Sequence[str], group: tuple[object, ...], pieces: Pieces
    ) -> None:
        """Compute a batch, and complete its requests.

        Args:
            signature: The signature to run.
            outputs: Names of the requested outputs.
            group: The queue's group, from `Policy.place`.
            pieces: The rows.
        """
        started = self._clock()
        for piece in pieces:
            piece.task.queue_s = started - piece.task.arrived
        if group == APART:
            (piece,) = pieces
            answer = self._run_apart(signature, piece.task.inputs, outputs)
            piece.task.took(self._clock() - started)
            piece.task.answer(piece, answer)
            return
        rows = sum(piece.rows for piece in pieces)
        padding = padded_size(rows, self._policy.allowed_sizes) - rows if pieces[-1].rows else 0
        failure: Exception | None = None
        try:
            found, compute_s = self._run_merged(signature, outputs, pieces, padding)
        except Exception as error:  # noqa: BLE001 - passed to all affected requests
            failure, compute_s = error, self._clock() - started
        else:
            for piece in pieces:
                piece.task.took(compute_s)
            parts = split(found, [p.rows for p in pieces], whole=len(pieces) == 1 and not padding)
            for piece, part in zip(pieces, parts, strict=True):
                piece.task.answer(piece, part)
            self._policy.computed(signature, rows, compute_s)
        self._tell(
            BatchObservation(
                queue_s=tuple(piece.task.queue_s for piece in pieces),
                compute_s=compute_s,
                rows=rows,
                padded_rows=padding,
                signature=signature,
                failed=failure is not None,
            )
        )
        if failure is not None:
            self._after_failure(signature, outputs, pieces, failure)
            del failure  # its traceback refers to this frame

    def _run_apart(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None
    ) -> Answer:
        answer = self._model.run(signature, inputs, outputs)
        self._policy.ran_apart(signature, inputs)
        return answer

    def _run_merged(
        self, signature: str, outputs: Sequence[str], pieces: Pieces, padding: int
    ) -> tuple[Answer, float]:
        tensors = {n: spec.tensor for n, spec in self._model.signatures[signature].inputs.items()}
        inputs = merge(
            [_rows(piece) for piece in pieces],
            padding,
            pad_shapes=self._policy.pad_shapes,
            tensors=tensors,
        )
        began = self._clock()
        rows = sum(piece.rows for piece in pieces) + padding
        found = self._model.run(signature, inputs, outputs)
        compute_s = self._clock() - began
        if len(pieces) > 1 or self._policy.checks_outputs:
            try:
                check_outputs(found, rows)
            except StatusError:
                self._policy.misfit(signature)
                raise
        return found, compute_s

    def _after_failure(
        self, signature: str, outputs: Sequence[str], pieces: Pieces, failure: Exception
    ) -> None:
        if len(pieces) == 1 or not self._policy.retries_apart:
            for piece in pieces:
                piece.task.fail(failure)
            return
        # Invalid rows of one request must not fail the others of its batch.
        now = self._clock()
        for piece in pieces:
            if piece.task.is_late(now):
                piece.task.fail(self._policy.late)
                continue
            try:
                found = self._model.run(signature, piece.task.inputs, outputs)
            except Exception as error:  # noqa: BLE001 - becomes the response
                piece.task.fail(error)
            else:
                piece.task.answer(piece, found)

    def _tell(self, observation: BatchObservation) -> None:
        if self._observer is None:
            return
        try:
            self._observer(observation)
        except Exception:  # noqa: BLE001 - a bug there must not fail requests
            _LOG.exception("a batch could not be counted")


def _rows(piece: Piece[Request]) -> Mapping[str, Array]:
    inputs = piece.task.inputs
    if piece.rows == piece.task.rows:
        return inputs
    return {name: array[piece.start : piece.stop] for name, array in inputs.items()}
