"""What the chief tells of a ``fit`` call while it runs: progress, metrics, TensorBoard's scalars.

A step must not become slower for being watched: per step there is one clock reading, and only when
a report is due is a value taken from the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.tracking import RunWriter
from timonel.training.worker.reports.summaries import Summaries

INTERVAL_S = 0.5
"""The least time between two progress events."""


@dataclass(frozen=True)
class Plan:
    """What a ``fit`` call is going to do.

    Attributes:
        fit: The number of the call.
        epochs: The number of the last epoch, counting from 1.
        first_epoch: The epoch it begins with, counting from 0.
        first_step: Steps of that epoch that were done before.
        steps: Steps of an epoch, if known.
        batch_size: The global batch size, if known.
        steps_before: Optimizer steps that were done before its first epoch.
        epochs_before: Epochs of earlier calls.
    """

    fit: int
    epochs: int
    first_epoch: int = 0
    first_step: int = 0
    steps: int | None = None
    batch_size: int | None = None
    steps_before: int = 0
    epochs_before: int = 0


@dataclass(frozen=True)
class Pace:
    """How fast training goes, and for how long still."""

    steps_per_s: float | None
    examples_per_s: float | None
    eta_s: float | None


def pace(plan: Plan, *, epoch: int, step: int, steps_done: int, elapsed_s: float) -> Pace:
    """Return the pace after ``steps_done`` steps in ``elapsed_s`` seconds.

    Args:
        plan: What is to be done.
        epoch: The present epoch, counting from 0.
        step: Steps of it that are done.
        steps_done: Steps in the time that was measured.
        elapsed_s: That time.
    """
    if steps_done <= 0 or elapsed_s <= 0:
        return Pace(None, None, None)
    rate = steps_done / elapsed_s
    examples = None if plan.batch_size is None else rate * plan.batch_size
    if plan.steps is None:
        return Pace(rate, examples, None)
    left = max(0, (plan.epochs - epoch) * plan.steps - step)
    return Pace(rate, examples, left / rate)


class Reporter:
    """Reports one ``fit`` call to a run. `batch` may be called from any thread.

    Args:
        run: The run's writer.
        summaries: TensorBoard's event files.
        plan: What the call is going to do.
        clock: Seconds that only grow.
        learning_rate: Returns the present one, where there is one.
    """

    def __init__(
        self,
        run: RunWriter,
        summaries: Summaries,
        plan: Plan,
        clock: Callable[[], float] = time.monotonic,
        learning_rate: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.plan = plan
        self.beside: Callable[[], Mapping[str, float]] = dict
        """What is reported with the metrics, though Keras knows nothing of it."""
        self._run = run
        self._summaries = summaries
        self._clock = clock
        self._learning_rate = learning_rate
        self._epoch = plan.first_epoch
        self._epoch_begun = 0.0
        self._due = 0.0
        self._steps_before_epoch = 0
        # When and at how many steps measuring began: for the whole call, and for this epoch.
        self._call_mark: tuple[float, int] | None = None
        self._epoch_mark: tuple[float, int] | None = None

    def expect_steps(self, steps: int | None) -> None:
        """Note how many steps an epoch has, once Keras knows."""
        self.plan = replace(self.plan, steps=steps)

    def saved(self, folder: Path, epochs: int) -> None:
        """Report a checkpoint after so many epochs."""
        self._run.event("checkpoint", fit=self.plan.fit, epochs=epochs, path=str(folder))

    def epoch_begins(self, epoch: int) -> None:
        """Note that an epoch begins, counting from 0."""
        self._epoch, self._epoch_begun = epoch, self._clock()
        if self._call_mark is not None:
            self._epoch_mark = self._epoch_begun, self._steps_before_epoch

    def batch(self, step: int, logs: Mapping[str, Any]) -> None:
        """Note that ``step`` steps of the epoch are done."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + INTERVAL_S
        total = self._steps_before_epoch + step
        if self._call_mark is None:
            # The first step was traced and compiled: it says nothing of those to come.
            self._call_mark = self._epoch_mark = now, total
        recent = self._pace_since(self._epoch_mark, step, now, total)
        self._tell(step, logs, recent, total)

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any], *, steps: int, took_s: float) -> None:
        """Report an epoch's metrics.

        Args:
            epoch: Its number, counting from 0.
            logs: What Keras says of it.
            steps: Steps it had.
            took_s: How long these took, without validation.
        """
        values = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        values.update(self.beside())
        number = self.plan.epochs_before + epoch
        self._steps_before_epoch += steps
        taken = steps - (self.plan.first_step if epoch == self.plan.first_epoch else 0)
        # Validation and callbacks after the last step are no part of its pace.
        ended = min(self._clock(), self._epoch_begun + took_s)
        recent = self._pace_since(self._epoch_mark, steps, ended, self._steps_before_epoch)
        if recent.steps_per_s is None:
            recent = pace(self.plan, epoch=epoch, step=steps, steps_done=taken, elapsed_s=took_s)
        if recent.steps_per_s is not None:
            values["step_ms"] = 1000 / recent.steps_per_s
        if recent.examples_per_s is not None:
            values["examples_per_s"] = recent.examples_per_s
        rate = self._learning_rate()
        if rate is not None:
            # The one that updates are made with: a callback may have told its own in the logs.
            values["learning_rate"] = rate
        self._run.metrics(
            values, step=self.plan.steps_before + self._steps_before_epoch, epoch=number
        )
        self._tell(steps, logs, recent, self._steps_before_epoch)
        self._summaries.epoch(values, number)

    def _tell(self, step: int, logs: Mapping[str, Any], recent: Pace, total: int) -> None:
        # What is left has validation in it as well, and so has the time since the call began.
        whole = self._pace_since(self._call_mark, step, self._clock(), total)
        metrics = {**_finite(logs), **self.beside()}
        self._write_step(metrics, recent, total)
        fields = {
            "fit": self.plan.fit,
            "epoch": self._epoch + 1,
            "epochs": self.plan.epochs,
            "step": step,
            "steps": self.plan.steps,
            "loss": metrics.pop("loss", None),
            "metrics": metrics or None,
            "examples_per_s": recent.examples_per_s,
            "steps_per_s": recent.steps_per_s,
            "eta_s": whole.eta_s,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        self._run.event("progress", **known)

    def _write_step(self, metrics: Mapping[str, float], recent: Pace, total: int) -> None:
        values = {name: value for name, value in metrics.items() if not name.startswith("val_")}
        rate = self._learning_rate()
        if rate is not None:
            values["learning_rate"] = rate
        if recent.examples_per_s is not None:
            values["examples_per_s"] = recent.examples_per_s
        self._summaries.step(values, self.plan.steps_before + total)

    def _pace_since(
        self, mark: tuple[float, int] | None, step: int, now: float, total: int
    ) -> Pace:
        begun, before = mark or (now, total)
        return pace(
            self.plan,
            epoch=self._epoch,
            step=step,
            steps_done=total - before,
            elapsed_s=now - begun,
        )


def _finite(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars that JSON can hold; NaN shows in the epoch's metrics, which keep it."""
    scalars = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
    return {name: value for name, value in scalars.items() if math.isfinite(value)}
