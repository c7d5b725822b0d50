"""Choose the best checkpoint, and decide when to stop early. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from timonel.errors import SpecError
from timonel.training.worker.evaluation.record import Evaluated
from timonel.training.worker.state.best import Best, parse_best

PREFIX = "val_"
"""Keras' prefix for the metrics of an evaluation."""
PATIENCE = 3


@dataclass(frozen=True)
class Stopping:
    """Early-stopping rule.

    Attributes:
        by: Metric and direction.
        patience: Number of checkpoints in a row without improvement after which training ends.
    """

    by: Best
    patience: int = PATIENCE

    def is_due(self, done: Sequence[Evaluated]) -> bool:
        """Whether training should end, given the evaluations so far."""
        return since_best(done, self.by) >= self.patience


def parse_stopping(text: str | None) -> Stopping | None:
    """Parse a rule such as ``val_loss``, ``val_loss:5`` or ``max:val_f1:5``.

    Raises:
        SpecError: The text is invalid, or the metric is not one of an evaluation.
    """
    if text is None:
        return None
    name, colon, last = text.rpartition(":")
    counted = bool(colon) and last.isdecimal()
    metric, patience = (name, int(last)) if counted else (text, PATIENCE)
    try:
        by = parse_best(metric)
    except SpecError:
        by = None
    if by is None or patience < 1 or not by.metric.startswith(PREFIX):
        raise SpecError(
            f"expected early_stopping as a metric of the evaluation, such as val_loss, "
            f"max:val_f1 or val_loss:5, got {text!r}",
            hint="the number is how many checkpoints in a row may be no better",
        )
    return Stopping(by, patience)


def judges(best: Best | None) -> bool:
    """Whether an evaluator, if there is one, finds the best checkpoint."""
    return best is not None and best.metric.startswith(PREFIX)


def best_of(done: Sequence[Evaluated], by: Best) -> Evaluated | None:
    """Return the best evaluation.

    The first of equals; None if none has the metric.
    """
    best: Evaluated | None = None
    for found in done:
        value = _value(found, by)
        if value is not None and (best is None or by.is_better(value, best.metrics[by.metric])):
            best = found
    return best


def since_best(done: Sequence[Evaluated], by: Best) -> int:
    """Return the number of evaluations since the best.

    A non-finite value is no better.
    """
    best = best_of(done, by)
    return len(done) if best is None else len(done) - 1 - list(done).index(best)


def _value(found: Evaluated, by: Best) -> float | None:
    value = found.metrics.get(by.metric)
    return value if value is not None and math.isfinite(value) else None
