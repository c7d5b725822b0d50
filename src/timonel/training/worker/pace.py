"""What each task computes a step and what it waits for the others: measured, and told now and then.

A step of several workers takes as long for each of them. So two moments of it are noted inside the
graph: when a task has its own gradients, and when those of all have been added up. From the second
of one step to the first of the next it works, after that it waits. The sums stay in two small
variables, which are read every other second; a step costs a few scalar operations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from timonel.tracking import RunWriter
from timonel.tracking.events import FILE_NAME, EventReader
from timonel.tracking.pace import PACE, Paces
from timonel.training.worker import _private

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""The least time between two reports of a task."""


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

    `arrive` and `leave` may be called on several replicas and for several graphs; in each graph the
    replica that comes first is measured; none where TensorFlow is told to be deterministic.
    """

    def __init__(self) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

        self._tf = tf
        with tf.device("CPU:0"):
            self._left = tf.Variable(0.0, trainable=False, dtype=tf.float64)
            self._arrived = tf.Variable(0.0, trainable=False, dtype=tf.float64)
            self._sums = tf.Variable([0.0] * 3, trainable=False, dtype=tf.float64)
        self._arrives: WeakSet[Any] = WeakSet()
        self._leaves: WeakSet[Any] = WeakSet()
        self._read = (0.0, 0.0, 0.0)

    def arrive(self, gradients: list[Any]) -> list[Any]:
        """Note when a task's own gradients are there; give them back as they are."""
        if self._is_first(self._arrives):
            self._arrived.assign(self._when(gradients))
        return gradients

    def leave(self, sums: list[Any]) -> list[Any]:
        """Note when the sums are there; give them back as they are."""
        tf = self._tf
        if self._is_first(self._leaves):
            now = self._when(sums)
            with tf.device("CPU:0"):
                arrived, left = self._arrived.read_value(), self._left.read_value()
                taken = tf.stack([tf.ones_like(now), arrived - left, now - arrived])
                # After a pause there is no beginning that the work could be counted from.
                self._sums.assign_add(tf.where(left > 0.0, taken, tf.zeros_like(taken)))
                self._left.assign(now)
        return sums

    def pause(self) -> None:
        """Leave out the time until the next step: something other than steps is done."""
        self._left.assign(0.0)

    def read(self) -> Reading:
        """Return what was measured since the last call."""
        sums = tuple(float(value) for value in self._sums.numpy())
        steps, work_s, wait_s = (now - then for now, then in zip(sums, self._read, strict=True))
        self._read = sums
        return Reading(round(steps), work_s, wait_s)

    def _when(self, tensors: list[Any]) -> Any:
        tf = self._tf
        with tf.control_dependencies([_dense(found) for found in tensors]), tf.device("CPU:0"):
            return tf.timestamp()

    def _is_first(self, seen: WeakSet[Any]) -> bool:
        if _private.is_deterministic():
            return False  # a clock is not allowed then
        if self._tf.executing_eagerly():
            return True
        graph = self._tf.compat.v1.get_default_graph()
        is_new = graph not in seen
        seen.add(graph)
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
        self._slowest = _Slowest(run) if names_slowest else None

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


class _Slowest:
    """Warns once when one task holds up the others."""

    def __init__(self, run: RunWriter) -> None:
        path = run.folder / FILE_NAME
        self._run = run
        self._reader = EventReader(path, offset=path.stat().st_size if path.exists() else 0)
        self._paces = Paces()
        self._has_warned = False

    def look(self) -> None:
        if self._has_warned:
            return
        for event in self._reader.read():
            self._paces.feed(event)
        slowest = self._paces.slowest
        if slowest is not None:
            self._has_warned = True
            message = f"{slowest}: every step waits for it"
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
