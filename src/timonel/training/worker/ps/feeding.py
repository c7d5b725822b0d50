"""Keras' own training loop, with steps computed by workers.

Keras' ``fit`` calls its train function once per step with the iterator of its data, and its test
function likewise. The functions here prefetch batches from that iterator, pass them to the workers
as pieces, and return once an update was made (or a batch was evaluated). So callbacks, data,
validation and ``History`` are Keras' own.

Prefetching stops at the end of an epoch and wherever state may be saved: at these points all
previous batches have counted, and no later ones.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.worker.inputs.fit_data import any_rows
from timonel.training.worker.inputs.sharding import bounds, require_equal_rows
from timonel.training.worker.ps import tracing
from timonel.training.worker.ps.dispatcher import Counted, Dispatcher
from timonel.training.worker.ps.gradient_buffers import Applier
from timonel.training.worker.ps.ledger import Ledger, Policy
from timonel.training.worker.ps.worker_messages import StepResults

logger = logging.getLogger(__name__)

BATCHES_AHEAD = 2
"""Pieces prefetched per worker, so that no worker waits for the chief."""


@dataclass(frozen=True)
class Horizon:
    """Limits for prefetching batches."""

    steps: int | None = None  # remaining steps of the epoch; None if the data determine the end
    every: int | None = None  # steps between two points where everything before has counted
    done: int = 0  # steps of the call so far, from which ``every`` counts

    def limit(self) -> int | None:
        """Return the maximum number of unfinished batches; None for no limit."""
        until = None if self.every is None else self.every - self.done % self.every
        known = [number for number in (self.steps, until) if number is not None]
        return min(known) if known else None


@dataclass(eq=False)
class LoopPhase:
    """Training or evaluation steps over the batches of successive iterators."""

    model: Any
    strategy: Any
    dispatcher: Dispatcher
    workers: int
    _: KW_ONLY
    training: bool
    divides: bool
    name: str
    policy: Policy = field(default_factory=Policy)
    horizon: Horizon = field(default_factory=Horizon)
    is_settling: bool = False
    _step: tracing.TracedStep | None = None
    _step_results: StepResults | None = None
    _shapes: Any = None
    _kept: Any = None
    _applier: Applier | None = None
    _rows: dict[int, int] = field(default_factory=dict)
    _batches: int = 0
    _since_rest: int = 0
    _is_exhausted: bool = False

    @property
    def _ledger(self) -> Ledger:
        return self.dispatcher.ledger

    @property
    def is_settled(self) -> bool:
        """Whether every batch taken so far has counted."""
        return self._ledger.is_idle

    def begin(self, horizon: Horizon, policy: Policy) -> None:
        """Begin an epoch; all previous batches must have counted."""
        self.horizon, self.policy = horizon, policy
        self._is_exhausted = False
        self.is_settling = False

    def step(self, iterator: Any, check: Callable[[], object]) -> Any:
        """Make one update, or evaluate one batch; return Keras' logs, or raise OutOfRangeError."""
        self._ledger.policy = self.policy
        self._take_ahead(iterator)
        if self._ledger.is_idle:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        found = self.dispatcher.wait(check)
        logs = self._count(found)
        self.dispatcher.counted(found, as_update=self.training)
        self._batches -= 1
        self._rest()
        steps = None if self.horizon.steps is None else self.horizon.steps - 1
        self.horizon = Horizon(steps, self.horizon.every, self.horizon.done + 1)
        return logs

    def _take_ahead(self, iterator: Any) -> None:
        while self._may_take():
            batch, self._kept = self._kept, None
            if batch is None:
                try:
                    batch = next(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    self._is_exhausted = True
                    return
            if self._batches and not self._may_join(batch):
                self._kept = batch
                return
            self._add(batch)

    def _may_take(self) -> bool:
        if self._is_exhausted and self._kept is None:
            return False
        if self._batches and (self.is_settling or self._kept is not None):
            return False
        if self._batches and not self._may_overlap():
            return False
        limit = self.horizon.limit()
        if limit is not None and self._batches >= limit:
            return False
        return self._ledger.unsettled < max(self.policy.needed, BATCHES_AHEAD * self.workers)

    def _may_overlap(self) -> bool:
        """Tell whether a batch may start before the previous one has counted."""
        spare = self.workers > self.policy.needed
        return self.policy.attempts is None and (not self.policy.synchronous or spare)

    def _may_join(self, batch: Any) -> bool:
        """Tell whether a batch's structure and size allow overlap with others."""
        return _rows(batch) >= self.policy.needed and _fits(_shapes(batch), self._shapes)

    def _add(self, batch: Any) -> None:
        self._prepare(batch)
        rows = _rows(batch)
        parts = min(rows, self.policy.needed)
        if parts > 1:
            require_equal_rows(batch)
        self._batches += 1
        for part in range(parts):
            begin, end = bounds(rows, part, parts)
            rows_of = operator.itemgetter(slice(begin, end))
            mine = batch if parts == 1 else tf.nest.map_structure(rows_of, batch)
            compute = self._computing(mine, part, (end - begin) / rows)
            piece = self.dispatcher.add(compute, leaves=self.training)
            self._rows[piece] = end - begin
        self._since_rest += 1

    def _computing(self, batch: Any, part: int, share: float) -> Callable[[int], Any]:
        step = self._step
        assert step is not None
        draw = tf.constant([self._since_rest, part], tf.int64)

        def compute(attempt: int) -> Any:
            number = tf.constant(attempt, tf.int64)
            return step.function(batch, draw, number, tf.constant(share)).numpy()

        return compute

    def _prepare(self, batch: Any) -> None:
        shapes = _shapes(batch)
        if self._step is not None and _fits(shapes, self._shapes):
            return
        if not all(isinstance(value, tf.Tensor) for value in tf.nest.flatten(batch)):
            raise TimonelError(
                "parameter servers support only dense tensors, but a batch holds "
                f"{tf.nest.map_structure(lambda value: type(value).__name__, batch)}",
                hint="map ragged and sparse tensors to dense ones in the dataset",
            )
        if self._step is None:
            tracing.build(self.model, self.strategy, batch, training=self.training)
        self._shapes = _joint(shapes, self._shapes)
        step = self._step = tracing.trace(
            self.model,
            self.strategy,
            self._shapes,
            training=self.training,
            name=self.name,
            divides=self.divides,
        )
        self._step_results = StepResults(self.model, step)
        if self.training:
            if self._applier is not None:
                self._applier.clear()
            self._applier = Applier(
                self.strategy, step.optimizer, step.variables, step.entries, self.name
            )

    def _count(self, found: Sequence[Counted]) -> dict[str, Any]:
        """Apply gradients, update the chief's states, and return Keras' logs."""
        assert self._step_results is not None
        attempts = [each.gradient.attempt for each in found]
        rows = [self._rows.pop(attempt.piece) for attempt in attempts]
        shares = [count / sum(rows) for count in rows]
        if self._applier is not None:
            weights = [
                each.gradient.weight * share for each, share in zip(found, shares, strict=True)
            ]
            self._applier.apply([attempt.number for attempt in attempts], weights, shares)
            for number in self.dispatcher.take_uncounted():
                self._applier.discard(number)
        results = [each.result for each in found]
        self._step_results.add(results, shares)
        return self._step_results.logs(results, shares)

    def _rest(self) -> None:
        if self._ledger.is_idle and self._step_results is not None:
            self._step_results.rest(self._since_rest)
            self._since_rest = 0


def _rows(batch: Any) -> int:
    return int(tf.nest.flatten(batch)[0].shape[0])


def _shapes(batch: Any) -> Any:
    return tf.nest.map_structure(any_rows, batch)


def _fits(here: Any, there: Any) -> bool:
    """Tell whether a step traced for ``there`` accepts batches like ``here``."""
    return _alike(here, there) and all(
        one.is_compatible_with(other)
        for one, other in zip(tf.nest.flatten(here), tf.nest.flatten(there), strict=True)
    )


def _joint(here: Any, there: Any) -> Any:
    """Return shapes that cover both, if only sizes differ: each length would be traced again."""
    if there is None or not _alike(here, there):
        return here
    return tf.nest.map_structure(
        lambda one, other: one.most_specific_common_supertype([other]), here, there
    )


def _alike(here: Any, there: Any) -> bool:
    try:
        tf.nest.assert_same_structure(here, there)
    except (ValueError, TypeError):
        return False
    return all(
        (one.dtype, one.shape.rank) == (other.dtype, other.shape.rank)
        for one, other in zip(tf.nest.flatten(here), tf.nest.flatten(there), strict=True)
    )
