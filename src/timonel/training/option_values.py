"""Options with a syntax of their own: ``keep_best``, ``early_stopping``, ``profile``. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.errors import SpecError
from timonel.tracking.metric_names import is_larger_better

VALIDATION_PREFIX = "val_"
"""Keras' prefix for the metrics of an evaluation."""
PATIENCE = 3


@dataclass(frozen=True)
class Best:
    """Criterion of the best checkpoint."""

    metric: str  # name in the epoch's logs, such as ``val_loss``
    larger: bool  # is better

    @property
    def needs_evaluation(self) -> bool:
        """Whether an evaluator, if the job has one, finds the best checkpoint."""
        return self.metric.startswith(VALIDATION_PREFIX)

    def value(self, history: Mapping[str, Sequence[Any]]) -> float | None:
        """Return the metric of the last epoch; None unless it is a finite number."""
        values = history.get(self.metric)
        if not values or not isinstance(values[-1], int | float) or not math.isfinite(values[-1]):
            return None
        return float(values[-1])

    def is_better(self, value: float, than: float) -> bool:
        """Whether ``value`` is better than ``than``."""
        return value > than if self.larger else value < than


@dataclass(frozen=True)
class EarlyStopping:
    """Rule for the end of training."""

    by: Best
    patience: int = PATIENCE  # checkpoints in a row without improvement after which training ends


@dataclass(frozen=True)
class StepRange:
    """Steps to profile, from 1 through all epochs of the call, both ends inclusive."""

    first: int
    last: int


def parse_best(text: str | None) -> Best | None:
    """Parse a criterion such as ``val_loss`` or ``max:val_f1``."""
    best = None if text is None else _parse_criterion(text)
    if text is not None and best is None:
        raise SpecError(
            f"--keep-best needs a metric such as val_loss or max:val_f1, got {text!r}",
            hint="use a name from Keras' logs, with the prefix min: or max: if needed",
        )
    return best


def parse_early_stopping(text: str | None) -> EarlyStopping | None:
    """Parse a rule such as ``val_loss``, ``val_loss:5`` or ``max:val_f1:5``."""
    if text is None:
        return None
    name, colon, last = text.rpartition(":")
    has_patience = bool(colon) and last.isdecimal()
    metric, patience = (name, int(last)) if has_patience else (text, PATIENCE)
    by = _parse_criterion(metric)
    if by is None or patience < 1 or not by.needs_evaluation:
        raise SpecError(
            f"--early-stopping needs a validation metric, got {text!r}",
            hint="as in val_loss, max:val_f1 or val_loss:5",
        )
    return EarlyStopping(by, patience)


def _parse_criterion(text: str) -> Best | None:
    """Return a criterion; None if the text is none. A name that shows no direction needs one."""
    mode, colon, name = text.rpartition(":")
    if not name.isidentifier() or (colon and mode not in {"min", "max"}):
        return None
    larger = mode == "max" if colon else is_larger_better(name)
    if larger is None:
        raise SpecError(
            f"the name {name!r} does not show whether larger values are better",
            hint=f"write max:{name} or min:{name}",
        )
    return Best(name, larger)


def parse_steps(text: str) -> StepRange:
    """Parse steps of the form ``10`` or ``10:20``."""
    first, _, last = text.partition(":")
    steps = StepRange(int(first), int(last or first))
    if not 1 <= steps.first <= steps.last:
        raise SpecError(
            f"--profile needs a range of steps that starts at 1 or later, got {text!r}",
            hint="for example --profile 10:20",
        )
    return steps
