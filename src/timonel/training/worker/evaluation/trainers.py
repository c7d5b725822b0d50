"""Validation of a ``fit`` call: its data, and leaving it to an evaluator."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from timonel.training.checkpoints import FINAL
from timonel.training.evaluations import EvaluationRecords, FitEvaluations
from timonel.training.worker.inputs.fit_data import of_each, unpack
from timonel.training.worker.plugin import FitPlugin
from timonel.training.worker.state import callback_state

logger = logging.getLogger(__name__)

NEVER: list[int] = []
"""A ``validation_freq`` without epochs, which disables validation in both Kerases."""


def evaluation_of(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return arguments of ``evaluate`` in Keras' ``fit``; None without validation data."""
    data = arguments.get("validation_data")
    if data is None:
        data = _split_off(arguments)
    if data is None:
        return None
    x, y, sample_weight = unpack(data)
    return {
        "x": x,
        "y": y,
        "sample_weight": sample_weight,
        "batch_size": arguments.get("validation_batch_size") or arguments.get("batch_size"),
        "steps": arguments.get("validation_steps"),
        "verbose": 0,
        "return_dict": True,
    }


def who_validates(keras: Any, given: Any) -> str | None:
    """Return the class name of a callback that may use validation results, if any."""
    # An evaluator's results arrive after the end of an epoch, too late for callbacks, so the
    # trainers then validate too. Any callback that is not Keras' own may use them.
    for callback in callback_state.listed(given):
        if _may_look(keras, callback):
            return type(callback).__name__
    return None


def _may_look(keras: Any, callback: Any) -> bool:
    own = type(callback).__module__.split(".")[0] != keras.__name__
    if own or isinstance(callback, keras.callbacks.LambdaCallback):
        return True
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        named = "val_" in str(callback.filepath)
        return named or (callback.save_best_only and callback.monitor.startswith("val_"))
    return str(getattr(callback, "monitor", "")).startswith("val_")


def _split_off(arguments: Mapping[str, Any]) -> Any:
    """Return the rows that ``validation_split`` sets aside: the last ones."""
    share = arguments.get("validation_split")
    if not share:
        return None
    given = tuple(arguments.get(name) for name in ("x", "y", "sample_weight"))
    rows = tf.nest.flatten(given[0])[0].shape[0]
    begin = math.floor(rows * (1.0 - share))
    return of_each(lambda each: each[begin:], given)


def add_to_history(history: Any, record: FitEvaluations) -> None:
    """Add evaluations at epoch ends, unless the trainers validated themselves."""
    # Skipped epochs are missing, as with Keras' ``validation_freq``.
    own = set(history.history)
    for done in record.done:
        if done.is_epochs_end:
            for name, value in done.metrics.items():
                if name not in own:
                    history.history.setdefault(name, []).append(value)


TASK = "evaluator-0"
GONE_S = 120.0
"""Silence in seconds, longer than a restart, after which an evaluator counts as gone."""
_LEAST_PATIENCE_S = 600.0
_TIMES = 10
_POLL_S = 0.2
_CLOCKS_APART_S = 5.0


@dataclass(eq=False)
class Trainers(FitPlugin):
    """Validation of a task's ``fit`` calls. Not thread-safe."""

    keras: Any
    records: EvaluationRecords
    task_dir: Path
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] = time.sleep
    _fit: int = -1
    _is_left: bool = False
    # Not checked at the start of a call: workers might come to different results and diverge.
    _is_gone: bool = False

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:  # noqa: ARG002 - the seam's
        """Disable a call's validation if the evaluator can do it alone."""
        self._fit += 1
        self._is_left = False
        if evaluation_of(arguments) is None:
            return
        looks = who_validates(self.keras, arguments.get("callbacks"))
        if looks is not None:
            logger.info(
                "fit %d: the trainers validate too, as the callback %s may use the results.",
                self._fit,
                looks,
            )
            return
        logger.info("fit %d: the evaluator runs the validation.", self._fit)
        self._is_left = True
        # Rows set aside by validation_split are still not trained on.
        arguments["validation_freq"] = NEVER

    def fit_ends(self, model: Any, history: Any) -> None:  # noqa: ARG002 - the seam's arguments
        """Wait for the last evaluation; add results to the ``History``."""
        if self._is_left:
            self._wait()
            add_to_history(history, self.records.read(self._fit))

    def _wait(self) -> None:
        begun = seen = self.clock()
        while not (record := self.records.read(self._fit)).has(FINAL):
            now = self.clock()
            if self._is_alive():
                seen, self._is_gone = now, False
            if now - seen > (0 if self._is_gone else GONE_S):
                self._is_gone = True
                logger.warning(
                    "The evaluator does not respond. fit %d ends without its results.", self._fit
                )
                return
            if now - begun > patience_s(record):
                logger.warning(
                    "The evaluator is not done after %.0f s. fit %d ends without its last results.",
                    now - begun,
                    self._fit,
                )
                return
            self.sleep(_POLL_S)

    def _is_alive(self) -> bool:
        try:
            alive = self.task_dir.with_name(TASK) / "alive"
            return time.time() - alive.stat().st_mtime < _CLOCKS_APART_S
        except OSError:
            return False


def patience_s(record: FitEvaluations) -> float:
    """Return how long trainers wait for the last evaluation, given the earlier ones."""
    longest = max((found.seconds for found in record.done), default=0.0)
    return max(_LEAST_PATIENCE_S, _TIMES * longest)
