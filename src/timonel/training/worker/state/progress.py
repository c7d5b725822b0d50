"""How far a ``fit`` call has come. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Progress:
    """How far a ``fit`` call has come.

    Attributes:
        epochs: The numbers of the epochs that are done, counting from 0.
        history: What Keras' ``History`` holds of them.
        steps: Optimizer steps of this and all earlier calls.
        finished: The call has returned; there is nothing left to train.
        step: Steps that are done of the epoch after these.
    """

    epochs: tuple[int, ...] = ()
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    steps: int = 0
    finished: bool = False
    step: int = 0

    @property
    def next_epoch(self) -> int:
        """The epoch to go on with."""
        return self.epochs[-1] + 1 if self.epochs else 0

    @property
    def steps_before_epoch(self) -> int:
        """Optimizer steps that were done when the epoch to go on with began."""
        return self.steps - self.step

    def within(self, step: int) -> Progress:
        """Return the progress once ``step`` steps of the next epoch are done."""
        return replace(self, step=step, steps=self.steps_before_epoch + step)

    def after(self, epoch: int, logs: Mapping[str, Any], steps: int) -> Progress:
        """Return the progress once ``epoch`` ended with ``logs``, after ``steps`` in all."""
        grown = {**self.history, **{name: () for name in logs if name not in self.history}}
        history = {
            name: (*values, plain(logs[name])) if name in logs else tuple(values)
            for name, values in grown.items()
        }
        return Progress((*self.epochs, epoch), history, steps)

    def as_finished(self) -> Progress:
        """Return the progress once the call has returned."""
        return replace(self, finished=True, steps=self.steps_before_epoch, step=0)


def plain(value: Any) -> Any:
    """Return a metric's value as JSON can hold it."""
    array = np.asarray(value)
    return array.tolist() if array.dtype.isbuiltin == 1 else array.astype(np.float64).tolist()
