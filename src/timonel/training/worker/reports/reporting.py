"""Reports of the chief during a ``fit`` call: progress, metrics, TensorBoard scalars.

Reporting must not slow down steps: each step costs one clock reading, and values are read from the
device only when a report is due.
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

_SCALAR = 1  # DATA_CLASS_SCALAR


class Summaries:
    """TensorBoard event files, with folders and tags as in Keras' own callbacks.

    ``train`` has ``batch_loss`` by step and ``epoch_loss`` by epoch, ``validation`` has the
    ``epoch_loss`` of validation; an evaluator's values are in ``evaluator``, by step.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def step(self, values: Mapping[str, float], step: int) -> None:
        """Write the values of a step, buffered."""
        for name, value in values.items():
            self._scalar("train", f"batch_{name}", value, step)

    def epoch(self, values: Mapping[str, float], epoch: int) -> None:
        """Write an epoch's metrics."""
        for name, value in values.items():
            inner = name.removeprefix("val_")
            self._scalar("train" if inner == name else "validation", f"epoch_{inner}", value, epoch)
        self.flush()

    def evaluation(self, values: Mapping[str, float], step: int) -> None:
        """Write an evaluator's results for the weights after ``step`` steps."""
        for name, value in values.items():
            self._scalar("evaluator", f"evaluation_{name}_vs_iterations", value, step)
        self.flush()

    def flush(self) -> None:
        """Flush all files to disk."""
        for writer in self._writers.values():
            writer.flush()

    def _scalar(self, part: str, tag: str, value: float, step: int) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        if part not in self._writers:
            self._writers[part] = tf.summary.create_file_writer(str(self._folder / part))
        # tf.summary.scalar needs TensorBoard itself; its format needs only this.
        kind = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=kind, data_class=_SCALAR)
        with self._writers[part].as_default():
            tf.summary.write(tag, tf.constant(value, tf.float32), step=step, metadata=metadata)


INTERVAL_S = 0.5
"""Minimum seconds between two progress events."""


@dataclass(frozen=True)
class FitPlan:
    """Plan of a ``fit`` call."""

    fit: int  # number of the call
    epochs: int  # number of the last epoch, from 1
    first_epoch: int = 0  # from 0
    first_step: int = 0  # steps of that epoch completed before
    steps: int | None = None  # per epoch, if known
    batch_size: int | None = None  # global, if known
    steps_before: int = 0  # optimizer steps before its first epoch
    epochs_before: int = 0  # epochs of earlier calls


def eta_s(plan: FitPlan, *, epoch: int, step: int, rate: float | None) -> float | None:
    """Return the remaining time after a step of an epoch, from 0, at ``rate`` steps per second."""
    if plan.steps is None or not rate:
        return None
    return max(0, (plan.epochs - epoch) * plan.steps - step) / rate


@dataclass(eq=False)
class Reporter:
    """Reports one ``fit`` call to a run. `batch` may be called from any thread."""

    run: RunWriter
    summaries: Summaries
    plan: FitPlan
    clock: Callable[[], float] = time.monotonic
    learning_rate: Callable[[], float | None] = lambda: None
    beside: Callable[[], Mapping[str, float]] = dict  # values that Keras does not know
    _epoch_begun: float = 0.0
    _due: float = 0.0
    _steps_before_epoch: int = 0
    # Time and step count at which measuring began: for the call, and for this epoch.
    _call_mark: tuple[float, int] | None = None
    _epoch_mark: tuple[float, int] | None = None

    def __post_init__(self) -> None:
        self._epoch = self.plan.first_epoch

    def expect_steps(self, steps: int | None) -> None:
        """Set the number of steps per epoch, once Keras knows it."""
        self.plan = replace(self.plan, steps=steps)

    def saved(self, folder: Path, epochs: int) -> None:
        """Report a checkpoint after ``epochs`` epochs."""
        self.run.event("checkpoint", fit=self.plan.fit, epochs=epochs, path=str(folder))

    def epoch_begins(self, epoch: int) -> None:
        """Record the start of an epoch, from 0."""
        self._epoch, self._epoch_begun = epoch, self.clock()
        if self._call_mark is not None:
            self._epoch_mark = self._epoch_begun, self._steps_before_epoch

    def batch(self, step: int, logs: Mapping[str, Any]) -> None:
        """Report progress after ``step`` steps of the epoch, if due."""
        now = self.clock()
        if now < self._due:
            return
        self._due = now + INTERVAL_S
        total = self._steps_before_epoch + step
        if self._call_mark is None:
            # The first step included tracing and compilation, so it is not representative.
            self._call_mark = self._epoch_mark = now, total
        self._tell(step, logs, _rate(self._epoch_mark, now, total), total)

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any], *, steps: int, took_s: float) -> None:
        """Report the metrics of an epoch, whose steps took ``took_s`` without validation."""
        values = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        values.update(self.beside())
        number = self.plan.epochs_before + epoch
        self._steps_before_epoch += steps
        taken = steps - (self.plan.first_step if epoch == self.plan.first_epoch else 0)
        # Validation and callbacks after the last step do not count towards its pace.
        ended = min(self.clock(), self._epoch_begun + took_s)
        rate = _rate(self._epoch_mark, ended, self._steps_before_epoch)
        rate = rate or _rate((0.0, 0), took_s, taken)
        # The learning rate used by updates: a callback may have written its own to the logs.
        values |= ({"step_ms": 1000 / rate} if rate else {}) | self._speeds(rate)
        self.run.metrics(
            values, step=self.plan.steps_before + self._steps_before_epoch, epoch=number
        )
        self._tell(steps, logs, rate, self._steps_before_epoch)
        self.summaries.epoch(values, number)

    def _tell(self, step: int, logs: Mapping[str, Any], rate: float | None, total: int) -> None:
        metrics, speeds = {**_finite(logs), **self.beside()}, self._speeds(rate)
        trained = {name: value for name, value in metrics.items() if not name.startswith("val_")}
        self.summaries.step(trained | speeds, self.plan.steps_before + total)
        # The remaining time includes validation, and so does the time since the call began.
        whole = _rate(self._call_mark, self.clock(), total)
        fields = {
            "fit": self.plan.fit,
            "epoch": self._epoch + 1,
            "epochs": self.plan.epochs,
            "step": step,
            "steps": self.plan.steps,
            "loss": metrics.pop("loss", None),
            "metrics": metrics or None,
            "examples_per_s": speeds.get("examples_per_s"),
            "steps_per_s": rate,
            "eta_s": eta_s(self.plan, epoch=self._epoch, step=step, rate=whole),
        }
        known = {name: value for name, value in fields.items() if value is not None}
        self.run.event("progress", **known)

    def _speeds(self, rate: float | None) -> dict[str, float]:
        size = self.plan.batch_size
        examples = None if rate is None or size is None else rate * size
        found = {"examples_per_s": examples, "learning_rate": self.learning_rate()}
        return {name: value for name, value in found.items() if value is not None}


def _rate(mark: tuple[float, int] | None, now: float, total: int) -> float | None:
    """Return the steps per second since a mark, if there were any."""
    begun, before = mark or (now, total)
    return (total - before) / (now - begun) if total > before and now > begun else None


def _finite(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite scalars, for JSON; the epoch's metrics also keep NaN."""
    scalars = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
    return {name: value for name, value in scalars.items() if math.isfinite(value)}
