"""What differs between adaptive batching and TensorFlow Serving's parameters."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from timonel.serving.batching.batch_size import Learned, at_most, limit, observe
from timonel.serving.batching.merge import rows_of
from timonel.serving.batching.parameters import check_queue, unsigned
from timonel.serving.batching.queue import NaturalQueue, Queue, Room
from timonel.serving.batching.row_independence import Verdict, is_open, seconds_alone, verdict
from timonel.serving.batching.tfserving_queue import Limits, ParameterQueue
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.quick import OverrunCounter, is_even, spent
from timonel.serving.settings.batching import AdaptiveBatching, BatchingParameters
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code, StatusError

_PROOFS = 3
_MICRO = 1e-6
_HANDOVER_S = 1.5e-4
"""What it costs to queue a request, to wake a thread for it, and to get the answer back."""
_FAR_FROM_INSTANT_S = 5e-3
_DISTURBED = 1.2
"""On a busy machine a run now and then takes a thousand times as long as it computes: no
measurement of one that was alone counts for more than so many times the estimate."""
APART = ("apart",)
"""The group of what is queued, but computed by itself."""


class Place(NamedTuple):
    """Where a request queues.

    Args:
        rows: How many rows it has.
        group: What tells apart the queues of one signature and set of outputs.
    """

    rows: int
    group: tuple[Any, ...]


class Policy(abc.ABC):
    """The choices of one version's batching. Thread-safe."""

    allowed_sizes: Sequence[int] = ()
    pad_shapes = False
    retries_apart = False
    """Whether the requests of a batch that failed are computed again, one by one."""
    checks_outputs = False
    """Whether the outputs of a single request, too, must have its rows."""
    late: StatusError
    """The answer to a request whose deadline passed in the queue."""
    waits_for_late = False
    """Whether a caller waits for its answer though its deadline has passed."""

    @abc.abstractmethod
    def place(self, signature: str, inputs: Mapping[str, Array]) -> Place | None:
        """Return where a request queues; none if it has to be computed by itself.

        Raises:
            StatusError: It cannot be computed.
        """

    @abc.abstractmethod
    def queue(self, signature: str, group: tuple[Any, ...]) -> Queue[Any]:
        """Return an empty queue."""

    @abc.abstractmethod
    def most_rows(self, signature: str) -> int:
        """Return how many rows a batch should have at most."""

    @abc.abstractmethod
    def may_be_instant(self, signature: str) -> bool:
        """Return whether requests may be computed by whoever submits them."""

    @abc.abstractmethod
    def is_instant(self, signature: str, rows: int, requests: int = 1) -> bool:
        """Return whether some requests are computed sooner than they could be queued.

        Args:
            signature: What they ask for.
            rows: How many rows they have, all together.
            requests: How many they are.
        """

    @abc.abstractmethod
    def ran_alone(self, signature: str, rows: int, seconds: float, cpu_s: float = 0.0) -> None:
        """Learn from a run that had the model to itself.

        Args:
            signature: What was run.
            rows: Of how many rows.
            seconds: How long it took.
            cpu_s: How much of that the thread computed, instead of waiting for the processor.
        """

    @abc.abstractmethod
    def computed(self, signature: str, rows: int, seconds: float) -> None:
        """Learn from a batch."""

    @abc.abstractmethod
    def ran_apart(self, signature: str, inputs: Mapping[str, Array]) -> None:
        """Learn from a request that was computed by itself."""

    @abc.abstractmethod
    def misfit(self, signature: str) -> None:
        """Learn that a batch's outputs do not follow its rows."""


class AdaptivePolicy(Policy):
    """Natural batches of a learned size, of what is proven to be batchable.

    Args:
        model: Runs the proof.
        settings: Limits.
        samples: Inputs that signatures are known to take, by signature.
        at_once: Whether what is instant may be computed by whoever submits it.
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
        *,
        at_once: bool = False,
    ) -> None:
        self._model = model
        self._max_rows = settings.max_rows
        self._room = Room(settings.max_queued)
        self._learned = {name: Learned() for name in model.signatures}
        self._alone = {name: Learned() for name in model.signatures}
        self._verdicts = {
            name: _verdict(model, signature, samples.get(name))
            for name, signature in model.signatures.items()
        }
        self._proofs_left = dict.fromkeys(model.signatures, _PROOFS)
        self._even = {
            name
            for name, each in model.signatures.items()
            if at_once and is_even(each) and self._verdicts[name] is Verdict.TOGETHER
        }
        self._slips = {name: OverrunCounter(_FAR_FROM_INSTANT_S) for name in self._even}
        for name in tuple(self._even):
            with contextlib.suppress(StatusError):
                self.ran_alone(name, 1, *seconds_alone(model, model.signatures[name]))

    def place(self, signature: str, inputs: Mapping[str, Array]) -> Place | None:
        """Return a queue of the same shapes, for what is proven to be batchable."""
        if self._verdicts[signature] is not Verdict.TOGETHER:
            return None
        try:
            rows = rows_of(inputs)
        except StatusError:
            # The model itself words what is wrong with it, if anything is.
            return None
        specs = self._model.signatures[signature].inputs
        # Of another rank than declared: whether the outputs follow is not proven.
        if rows == 0 or any(a.ndim != len(specs[n].shape or ()) for n, a in inputs.items()):
            return None
        shapes = tuple((array.dtype, array.shape[1:]) for array in inputs.values())
        return Place(rows, (tuple(inputs), shapes))

    def queue(self, signature: str, group: tuple[Any, ...]) -> Queue[Any]:
        """Return a queue that holds nobody up."""
        if group == APART:
            return NaturalQueue(self._room, lambda: 0)
        return NaturalQueue(self._room, lambda: self.most_rows(signature))

    def most_rows(self, signature: str) -> int:
        """Return what was learned."""
        return limit(self._learned[signature], self._max_rows)

    def may_be_instant(self, signature: str) -> bool:
        """Return whether its rows are all the same work."""
        return signature in self._even

    def is_instant(self, signature: str, rows: int, requests: int = 1) -> bool:
        """Let nothing wait that is computed sooner than it is handed to another thread."""
        if signature not in self._even:
            return False
        seconds = at_most(self._alone[signature], rows)
        return seconds is not None and seconds < _HANDOVER_S * requests

    def ran_alone(self, signature: str, rows: int, seconds: float, cpu_s: float = 0.0) -> None:
        """Learn how long so many rows take when nothing else is computed."""
        if signature in self._even and self._slips[signature].are_too_many(cpu_s):
            # As much work as the values say: whoever submits must not be held up again.
            self._even.discard(signature)
        self._alone[signature] = observe(
            self._alone[signature], rows, spent(seconds, cpu_s), _DISTURBED
        )

    def computed(self, signature: str, rows: int, seconds: float) -> None:
        """Learn how long so many rows take."""
        # Of two threads one may be forgotten: it is a statistic.
        self._learned[signature] = observe(self._learned[signature], rows, seconds)

    def ran_apart(self, signature: str, inputs: Mapping[str, Array]) -> None:
        """Prove with these inputs what could not be proven at load."""
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
        """Put no requests together any more."""
        self._verdicts[signature] = Verdict.APART


def _verdict(
    model: LoadedModel, signature: Signature, sample: Mapping[str, Array] | None
) -> Verdict:
    # Rows that are made up are surely different from each other, so they come first.
    found = verdict(model, signature)
    if found is Verdict.UNKNOWN and sample is not None:
        return verdict(model, signature, sample)
    return found


class ParameterPolicy(Policy):
    """What TensorFlow Serving does by its parameters.

    Args:
        parameters: Sizes and times.

    Raises:
        StatusError: No model can be loaded with them.
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
        """Return the one queue of the signature and its outputs."""
        return Place(rows_of(inputs), ())

    def queue(self, signature: str, group: tuple[Any, ...]) -> Queue[Any]:  # noqa: ARG002
        """Return a queue with the parameters' limits."""
        return ParameterQueue(self._limits)

    def most_rows(self, signature: str) -> int:  # noqa: ARG002
        """Return the parameter."""
        return self._limits.batch_rows

    def may_be_instant(self, signature: str) -> bool:  # noqa: ARG002
        """Return that nothing may."""
        return False

    def is_instant(self, signature: str, rows: int, requests: int = 1) -> bool:  # noqa: ARG002
        """Queue everything: sizes are checked and padded there."""
        return False

    def ran_alone(self, signature: str, rows: int, seconds: float, cpu_s: float = 0.0) -> None:
        """Learn nothing: nothing does."""

    def computed(self, signature: str, rows: int, seconds: float) -> None:
        """Learn nothing: the sizes are given."""

    def ran_apart(self, signature: str, inputs: Mapping[str, Array]) -> None:
        """Learn nothing: everything is batched."""

    def misfit(self, signature: str) -> None:
        """Learn nothing: the next batch may fit."""
