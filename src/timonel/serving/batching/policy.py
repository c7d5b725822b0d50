"""Batching policies: adaptive, and TensorFlow Serving's parameters."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from timonel.serving.batching.batch_size import Learned, limit, observe
from timonel.serving.batching.merge import rows_of
from timonel.serving.batching.queue import NaturalQueue, Queue, Room
from timonel.serving.batching.row_independence import Verdict, is_open, verdict
from timonel.serving.batching.tfserving_parameters import check_queue, unsigned
from timonel.serving.batching.tfserving_queue import Limits, ParameterQueue
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings.batching import AdaptiveBatching, BatchingParameters
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code, StatusError

_PROOFS = 3
_MICRO = 1e-6
APART = ("apart",)
"""Group of requests that are queued but computed alone."""


class Place(NamedTuple):
    """Place of a request in the queues.

    Args:
        rows: The request's number of rows.
        group: Distinguishes the queues of one signature and set of outputs.
    """

    rows: int
    group: tuple[Any, ...]


class Policy(abc.ABC):
    """Batching decisions for one version. Thread-safe."""

    allowed_sizes: Sequence[int] = ()
    pad_shapes = False
    retries_apart = False
    """Whether to retry the requests of a failed batch one by one."""
    checks_outputs = False
    """Whether to check the number of output rows for single requests too."""
    late: StatusError
    """Error of requests whose deadline passed in the queue."""
    waits_for_late = False
    """Whether callers wait for the response even after their deadline."""

    @abc.abstractmethod
    def place(self, signature: str, inputs: Mapping[str, Array]) -> Place | None:
        """Return the place of a request; None to compute it alone.

        Raises:
            StatusError: The request cannot be computed.
        """

    @abc.abstractmethod
    def queue(self, signature: str, group: tuple[Any, ...]) -> Queue[Any]:
        """Return an empty queue."""

    @abc.abstractmethod
    def most_rows(self, signature: str) -> int:
        """Return the maximum rows of a batch."""

    @abc.abstractmethod
    def computed(self, signature: str, rows: int, seconds: float) -> None:
        """Record a batch."""

    @abc.abstractmethod
    def ran_apart(self, signature: str, inputs: Mapping[str, Array]) -> None:
        """Record a request that was computed alone."""

    @abc.abstractmethod
    def misfit(self, signature: str) -> None:
        """Record that a batch's outputs do not match its rows."""


class AdaptivePolicy(Policy):
    """Natural batches of a learned size, if rows are proven independent.

    Args:
        model: The model, which runs the proof.
        settings: Limits.
        samples: Inputs known to be valid, by signature.
    """

    retries_apart = True
    late = StatusError(
        Code.DEADLINE_EXCEEDED, "Deadline exceeded while waiting in the batching queue"
    )

    def __init__(
        self,
        model: LoadedModel,
        settings: AdaptiveBatching,
        samples: Mapping[str, Mapping[str, Array]],
    ) -> None:
        self._model = model
        self._max_rows = settings.max_rows
        self._room = Room(settings.max_queued)
        self._learned = {name: Learned() for name in model.signatures}
        self._verdicts = {
            name: _verdict(model, signature, samples.get(name))
            for name, signature in model.signatures.items()
        }
        self._proofs_left = dict.fromkeys(model.signatures, _PROOFS)

    def place(self, signature: str, inputs: Mapping[str, Array]) -> Place | None:
        """Return a queue for the same shapes; None if not proven batchable."""
        if self._verdicts[signature] is not Verdict.TOGETHER:
            return None
        try:
            rows = rows_of(inputs)
        except StatusError:
            # If the request is invalid, the model reports the error.
            return None
        specs = self._model.signatures[signature].inputs
        # Inputs of an undeclared rank are not covered by the proof.
        if rows == 0 or any(a.ndim != len(specs[n].shape or ()) for n, a in inputs.items()):
            return None
        shapes = tuple((array.dtype, array.shape[1:]) for array in inputs.values())
        return Place(rows, (tuple(inputs), shapes))

    def queue(self, signature: str, group: tuple[Any, ...]) -> Queue[Any]:
        """Return a queue without added delay."""
        if group == APART:
            return NaturalQueue(self._room, lambda: 0)
        return NaturalQueue(self._room, lambda: self.most_rows(signature))

    def most_rows(self, signature: str) -> int:
        """Return the learned limit."""
        return limit(self._learned[signature], self._max_rows)

    def computed(self, signature: str, rows: int, seconds: float) -> None:
        """Record the compute time of a batch."""
        # Races between threads may lose an update, which is acceptable for a statistic.
        self._learned[signature] = observe(self._learned[signature], rows, seconds)

    def ran_apart(self, signature: str, inputs: Mapping[str, Array]) -> None:
        """Prove independence of rows with these inputs, if not possible at load."""
        if self._verdicts[signature] is not Verdict.UNKNOWN:
            return
        spec = self._model.signatures[signature]
        if not is_open(spec) or any(array.shape[:1] in {(), (0,)} for array in inputs.values()):
            return
        self._proofs_left[signature] -= 1
        if self._proofs_left[signature] >= 0:
            one_row = {name: array[:1] for name, array in inputs.items()}
            self._verdicts[signature] = verdict(self._model, spec, one_row)
        if self._proofs_left[signature] <= 0 and self._verdicts[signature] is Verdict.UNKNOWN:
            self._verdicts[signature] = Verdict.APART

    def misfit(self, signature: str) -> None:
        """Batch no more requests of this signature."""
        self._verdicts[signature] = Verdict.APART


def _verdict(
    model: LoadedModel, signature: Signature, sample: Mapping[str, Array] | None
) -> Verdict:
    # Generated rows are certain to differ from each other, so try them first.
    found = verdict(model, signature)
    if found is Verdict.UNKNOWN and sample is not None:
        return verdict(model, signature, sample)
    return found


class ParameterPolicy(Policy):
    """Batching by TensorFlow Serving's parameters.

    Args:
        parameters: Sizes and times.

    Raises:
        StatusError: No model can be loaded with the parameters.
    """

    checks_outputs = True
    late = StatusError(
        Code.RESOURCE_EXHAUSTED, "Run() timeout exceeded while waiting in batching queue"
    )
    waits_for_late = True

    def __init__(self, parameters: BatchingParameters) -> None:
        check_queue(parameters)
        self.allowed_sizes = parameters.allowed_batch_sizes
        self.pad_shapes = parameters.pad_variable_length_inputs
        largest = unsigned(parameters.max_batch_size)
        split = parameters.enable_large_batch_splitting
        self._limits = Limits(
            task_rows=largest,
            batch_rows=(parameters.max_execution_batch_size or largest) if split else largest,
            timeout_s=parameters.batch_timeout_micros * _MICRO,
            batches=unsigned(parameters.max_enqueued_batches) or 1,
            split=split,
        )

    def place(self, signature: str, inputs: Mapping[str, Array]) -> Place | None:  # noqa: ARG002
        """Return the only queue of the signature and outputs."""
        return Place(rows_of(inputs), ())

    def queue(self, signature: str, group: tuple[Any, ...]) -> Queue[Any]:  # noqa: ARG002
        """Return a queue with the parameters' limits."""
        return ParameterQueue(self._limits)

    def most_rows(self, signature: str) -> int:  # noqa: ARG002
        """Return the configured limit."""
        return self._limits.batch_rows

    def computed(self, signature: str, rows: int, seconds: float) -> None:
        """Ignore the measurement: batch sizes are fixed."""

    def ran_apart(self, signature: str, inputs: Mapping[str, Array]) -> None:
        """Ignore the request: everything is batched."""

    def misfit(self, signature: str) -> None:
        """Ignore the mismatch: the next batch may match."""
