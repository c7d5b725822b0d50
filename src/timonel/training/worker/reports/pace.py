"""Measure and report each task's compute and wait time per step.

With several workers, a step takes equally long for each of them. So the graph records when a task
arrives at a synchronization point, and when all others have arrived. Workers synchronize when they
have their batches (if the data has an end) and their gradients. Time before such a point is work,
time in it is waiting. The sums are in two small variables, which are read every two seconds; a step
costs a few scalar operations.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from timonel.tracking import RunWriter
from timonel.tracking.events import FILE_NAME, EventReader
from timonel.tracking.pace import PACE, Paces
from timonel.training.worker.private import keras_fit

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Minimum seconds between two reports of a task."""
_WORK, _WAIT = (1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0)
"""Weights of the elapsed time in a stopwatch's state."""


@dataclass(frozen=True)
class Reading:
    """Measurements since the last reading."""

    steps: int
    work_s: float
    wait_s: float  # for others, or for communication


class Stopwatch:
    """Measures steps inside their graph. Create it outside any strategy's scope.

    Its methods may be called on several replicas and for several graphs; in each graph, the first
    replica is measured. Nothing is measured if TensorFlow is deterministic.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            # Of this step: last moment, work, waiting, and whether its start is known.
            self._state = tf.Variable([0.0] * 4, trainable=False, dtype=tf.float64)
            self._sums = tf.Variable([0.0] * 3, trainable=False, dtype=tf.float64)
        self._seen: dict[str, WeakSet[Any]] = defaultdict(WeakSet)
        self._read: tuple[float, ...] = (0.0, 0.0, 0.0)

    def has_batch(self, tensors: list[Any]) -> None:
        """Record when this task has its batch, given its tensors."""
        if self._is_first("batch"):
            self._note(tensors, _WORK)

    def have_batches(self, tensors: list[Any]) -> None:
        """Record when all other tasks have their batches."""
        if self._is_first("batches"):
            self._note(tensors, _WAIT)

    def arrive(self, gradients: list[Any]) -> list[Any]:
        """Record when this task's gradients are available; return them unchanged."""
        if self._is_first("gradients"):
            self._note(gradients, _WORK)
        return gradients

    def leave(self, sums: list[Any]) -> list[Any]:
        """Record the end of a step; return the sums unchanged."""
        if self._is_first("sums"):
            now = self._note(sums, _WAIT)
            with tf.device("CPU:0"):
                _, work, wait, is_known = tf.unstack(self._state.read_value())
                # The start of a step after a pause is unknown.
                self._sums.assign_add(tf.stack([tf.ones_like(now), work, wait]) * is_known)
                nothing = tf.zeros_like(now)
                self._state.assign(tf.stack([now, nothing, nothing, tf.ones_like(now)]))
        return sums

    def pause(self) -> None:
        """Exclude the current step, as other work than steps follows."""
        self._state.assign([0.0] * 4)

    def read(self) -> Reading:
        """Return the measurements since the last call."""
        sums = tuple(float(value) for value in self._sums.numpy())
        steps, work_s, wait_s = (now - then for now, then in zip(sums, self._read, strict=True))
        self._read = sums
        return Reading(round(steps), work_s, wait_s)

    def _note(self, tensors: list[Any], goes_to: tuple[float, ...]) -> Any:
        """Add the time since the last moment; return that at which the tensors are available."""
        computed = [getattr(found, "values", found) for found in tensors]  # those of slices
        with tf.control_dependencies(computed), tf.device("CPU:0"):
            now = tf.timestamp()
            took = now - self._state.read_value()[0]
            self._state.assign_add(took * tf.constant(goes_to, tf.float64))
        return now

    def _is_first(self, place: str) -> bool:
        if keras_fit.is_deterministic():
            return False  # deterministic operations exclude clocks
        if tf.executing_eagerly():
            return True
        graph = tf.compat.v1.get_default_graph()
        is_new = graph not in self._seen[place]
        self._seen[place].add(graph)
        return is_new


@dataclass(eq=False)
class PaceReporter:
    """Reports a stopwatch's readings to the run. Callable from any thread."""

    run: RunWriter
    task: str
    read: Callable[[], Reading]
    _: KW_ONLY
    share: float  # of each batch that this task has
    names_slowest: bool  # it compares all tasks
    clock: Callable[[], float] = time.monotonic
    batch_size: int | None = None

    def __post_init__(self) -> None:
        self._due = self.clock() + INTERVAL_S
        self._slowest = StragglerWarning(self.run, consequence=": every step waits for it")

    def tick(self) -> None:
        """Report if due."""
        now = self.clock()
        if now < self._due:
            return
        self._due = now + INTERVAL_S
        reading = self.read()
        if reading.steps > 0:
            self.run.event(PACE, task=self.task, **self._fields(reading))
        if self.names_slowest:
            self._slowest.look()

    def _fields(self, reading: Reading) -> Mapping[str, Any]:
        seconds = reading.work_s + reading.wait_s
        fields = {
            "steps": reading.steps,
            "step_ms": round(reading.work_s / reading.steps * 1000, 3),
            "wait_ms": round(reading.wait_s / reading.steps * 1000, 3),
        }
        if self.batch_size is not None and seconds > 0:
            rate = reading.steps * self.batch_size * self.share / seconds
            fields["examples_per_s"] = round(rate, 3)
        return fields


class StragglerWarning:
    """Warns once if one task delays the others, based on the reports of all tasks."""

    def __init__(self, run: RunWriter, *, consequence: str = "") -> None:
        path = run.folder / FILE_NAME
        self._run = run
        self._consequence = consequence
        self._reader = EventReader(path, offset=path.stat().st_size if path.exists() else 0)
        self._paces = Paces()
        self._has_warned = False

    def look(self) -> None:
        """Process the reports since the last call."""
        if self._has_warned:
            return
        for event in self._reader.read():
            self._paces.feed(event)
        slowest = self._paces.slowest
        if slowest is not None:
            self._has_warned = True
            message = f"{slowest}{self._consequence}"
            logger.warning("%s", message)
            self._run.event("log", level="warning", message=message, task=slowest.task)
