"""Progress of a ``fit`` call. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Progress:
    """Progress of a ``fit`` call.

    Attributes:
        epochs: Numbers of the completed epochs, from 0.
        history: Content of Keras' ``History`` for them.
        steps: Optimizer steps of this and all earlier calls.
        finished: Whether the call has returned.
        step: Completed steps of the next epoch.
    """

    epochs: tuple[int, ...] = ()
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    steps: int = 0
    finished: bool = False
    step: int = 0

    @property
    def next_epoch(self) -> int:
        """Number of the epoch to continue with."""
        return self.epochs[-1] + 1 if self.epochs else 0

    @property
    def steps_before_epoch(self) -> int:
        """Optimizer steps at the start of the epoch to continue with."""
        return self.steps - self.step

    def within(self, step: int) -> Progress:
        """Return the progress after ``step`` steps of the next epoch."""
        return replace(self, step=step, steps=self.steps_before_epoch + step)

    def after(self, epoch: int, logs: Mapping[str, Any], steps: int) -> Progress:
        """Return the progress after ``epoch`` ended, with ``steps`` steps in total."""
        grown = {**self.history, **{name: () for name in logs if name not in self.history}}
        history = {
            name: (*values, plain(logs[name])) if name in logs else tuple(values)
            for name, values in grown.items()
        }
        return Progress((*self.epochs, epoch), history, steps)

    def as_finished(self) -> Progress:
        """Return the progress after the call returned."""
        return replace(self, finished=True, steps=self.steps_before_epoch, step=0)


def plain(value: Any) -> Any:
    """Convert a metric's value to JSON types."""
    array = np.asarray(value)
    return array.tolist() if array.dtype.isbuiltin == 1 else array.astype(np.float64).tolist()
