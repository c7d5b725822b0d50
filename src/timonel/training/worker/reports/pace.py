"""What each task computes a step and what it waits for the others: measured, told now and then.

A step of several workers takes as long for each of them. So the moments are noted, inside its
graph, in which workers meet: when a task comes there, and when all others have come. They meet
where each has its batch (if the data has an end) and where each has its gradients. Up to a meeting
a task works, in it it waits. The sums stay in two small variables, which are read every other
second; a step costs a few scalar operations.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from timonel.tracking import RunWriter
from timonel.tracking.events import FILE_NAME, EventReader
from timonel.tracking.pace import PACE, Paces
from timonel.training.worker.private import keras_fit

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""The least time between two reports of a task."""
_ALL_WAIT = ": every step waits for it"
_WORK, _WAIT = (1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0)
"""What a stopwatch adds the time since the last moment to."""


@dataclass(frozen=True)
class Reading:
    """What was measured since the last reading.

    Attributes:
        steps: Steps that were taken.
        work_s: What the task computed in them.
        wait_s: What it waited for the others, or for what travels.
    """

    steps: int
    work_s: float
    wait_s: float


class Stopwatch:
    """Takes the time of steps inside their graph. Made outside any strategy's scope.

    Its methods may be called on several replicas and for several graphs; in each graph the replica
    that comes first is measured; none where TensorFlow is told to be deterministic.
    """

    def __init__(self) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

        self._tf = tf
        with tf.device("CPU:0"):
            # Of this step: the last moment, work, waiting, and whether its beginning is known.
            self._state = tf.Variable([0.0] * 4, trainable=False, dtype=tf.float64)
            self._sums = tf.Variable([0.0] * 3, trainable=False, dtype=tf.float64)
        self._seen: dict[str, WeakSet[Any]] = defaultdict(WeakSet)
        self._read: tuple[float, ...] = (0.0, 0.0, 0.0)

    def has_batch(self, tensors: list[Any]) -> None:
        """Note when a task has its batch: when these are there."""
        if self._is_first("batch"):
            self._note(tensors, _WORK)

    def have_batches(self, tensors: list[Any]) -> None:
        """Note when all others have theirs."""
        if self._is_first("batches"):
            self._note(tensors, _WAIT)

    def arrive(self, gradients: list[Any]) -> list[Any]:
        """Note when a task's own gradients are there; give them back as they are."""
        if self._is_first("gradients"):
            self._note(gradients, _WORK)
        return gradients

    def leave(self, sums: list[Any]) -> list[Any]:
        """Note when the sums of all are there, and the step is over; give them back as they are."""
        tf = self._tf
        if self._is_first("sums"):
            now = self._note(sums, _WAIT)
            with tf.device("CPU:0"):
                _, work, wait, is_known = tf.unstack(self._state.read_value())
                # Of a step that began with a pause it is not known when.
                self._sums.assign_add(tf.stack([tf.ones_like(now), work, wait]) * is_known)
                nothing = tf.zeros_like(now)
                self._state.assign(tf.stack([now, nothing, nothing, tf.ones_like(now)]))
        return sums

    def pause(self) -> None:
        """Leave out the step that goes on: something other than steps is done."""
        self._state.assign([0.0] * 4)

    def read(self) -> Reading:
        """Return what was measured since the last call."""
        sums = tuple(float(value) for value in self._sums.numpy())
        steps, work_s, wait_s = (now - then for now, then in zip(sums, self._read, strict=True))
        self._read = sums
        return Reading(round(steps), work_s, wait_s)

    def _note(self, tensors: list[Any], goes_to: tuple[float, ...]) -> Any:
        """Count the time since the last moment; return the present one, when tensors are there."""
        tf = self._tf
        with tf.control_dependencies([_dense(found) for found in tensors]), tf.device("CPU:0"):
            now = tf.timestamp()
            took = now - self._state.read_value()[0]
            self._state.assign_add(took * tf.constant(goes_to, tf.float64))
        return now

    def _is_first(self, place: str) -> bool:
        if keras_fit.is_deterministic():
            return False  # a clock is not allowed then
        if self._tf.executing_eagerly():
            return True
        graph = self._tf.compat.v1.get_default_graph()
        is_new = graph not in self._seen[place]
        self._seen[place].add(graph)
        return is_new


class Teller:
    """Writes what a stopwatch shows into the run. May be called from any thread.

    Args:
        run: The run's writer.
        task: The task's name.
        read: Returns what was measured since the last call.
        share: The part of each batch that is this task's.
        names_slowest: Whether this task looks at what all have told, and says who is slowest.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        run: RunWriter,
        task: str,
        read: Callable[[], Reading],
        *,
        share: float,
        names_slowest: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batch_size: int | None = None
        self._run = run
        self._task = task
        self._read = read
        self._share = share
        self._clock = clock
        self._due = clock() + INTERVAL_S
        self._slowest = Slowest(run, consequence=_ALL_WAIT) if names_slowest else None

    def tick(self) -> None:
        """Report, if it is time."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + INTERVAL_S
        reading = self._read()
        if reading.steps > 0:
            self._run.event(PACE, task=self._task, **self._fields(reading))
        if self._slowest is not None:
            self._slowest.look()

    def _fields(self, reading: Reading) -> Mapping[str, Any]:
        seconds = reading.work_s + reading.wait_s
        fields = {
            "steps": reading.steps,
            "step_ms": round(reading.work_s / reading.steps * 1000, 3),
            "wait_ms": round(reading.wait_s / reading.steps * 1000, 3),
        }
        if self.batch_size is not None and seconds > 0:
            rate = reading.steps * self.batch_size * self._share / seconds
            fields["examples_per_s"] = round(rate, 3)
        return fields


class Slowest:
    """Warns once when one task holds up the others, from what all have told.

    Args:
        run: The run's writer.
        consequence: What comes of it.
    """

    def __init__(self, run: RunWriter, *, consequence: str = "") -> None:
        path = run.folder / FILE_NAME
        self._run = run
        self._consequence = consequence
        self._reader = EventReader(path, offset=path.stat().st_size if path.exists() else 0)
        self._paces = Paces()
        self._has_warned = False

    def look(self) -> None:
        """Look at what was told since the last call."""
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


def callback_for(keras: Any, stopwatch: Stopwatch, teller: Teller) -> Any:
    """Return a callback of ``keras`` that has the pace told."""

    class PaceCallback(keras.callbacks.Callback):  # type: ignore[misc] # two Kerases, no types
        # It takes nothing from the device, and may be called beside the training loop.
        async_safe = True
        _supports_tf_logs = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            stopwatch.pause()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            teller.tick()

        def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            stopwatch.pause()

    return PaceCallback()


def _dense(found: Any) -> Any:
    return getattr(found, "values", found)  # of slices, what was computed
