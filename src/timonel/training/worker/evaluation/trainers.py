"""Leave the validation of trainers' ``fit`` calls to an evaluator."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timonel.training.worker.evaluation import validation
from timonel.training.worker.evaluation.history import add_to_history
from timonel.training.worker.evaluation.record import Record, Records
from timonel.training.worker.plugin import FitPlugin
from timonel.training.worker.state.checkpoint_format import FINAL

logger = logging.getLogger(__name__)

TASK = "evaluator-0"
GONE_S = 120.0
"""Silence in seconds after which an evaluator counts as gone.

A restart takes less.
"""
_LEAST_PATIENCE_S = 600.0
_TIMES = 10
_POLL_S = 0.2
_CLOCKS_APART_S = 5.0


class Trainers(FitPlugin):
    """Validation of a task's ``fit`` calls. Not thread-safe.

    Args:
        keras: Keras module.
        records: Records of the evaluator.
        task_dir: Folder of this task.
        clock: Monotonic clock in seconds.
        sleep: Sleep function, replaceable in tests.
    """

    def __init__(
        self,
        keras: Any,
        records: Records,
        task_dir: Path,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._keras = keras
        self._records = records
        self._alive = task_dir.with_name(TASK) / "alive"
        self._clock = clock
        self._sleep = sleep
        self._fit = -1
        self._is_left = False
        # Not checked at the start of a call: workers might come to different results and diverge.
        self._is_gone = False

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:  # noqa: ARG002 - the seam's
        """Disable a call's validation if the evaluator can do it alone."""
        self._fit += 1
        self._is_left = False
        if validation.evaluation_of(arguments) is None:
            return
        looks = validation.who_validates(self._keras, arguments.get("callbacks"))
        if looks is not None:
            logger.info(
                "fit %d: validated here as well as by the evaluator, as %s may look at the results",
                self._fit,
                looks,
            )
            return
        logger.info("fit %d: validation is left to the evaluator", self._fit)
        self._is_left = True
        # Rows set aside by validation_split are still not trained on.
        arguments["validation_freq"] = validation.NEVER

    def fit_ends(self, model: Any, history: Any) -> None:  # noqa: ARG002 - the seam's arguments
        """Wait for the last evaluation; add results to the ``History``."""
        if self._is_left:
            self._wait()
            add_to_history(history, self._records.read(self._fit))

    def _wait(self) -> None:
        begun = seen = self._clock()
        while not (record := self._records.read(self._fit)).has(FINAL):
            now = self._clock()
            if self._is_alive():
                seen, self._is_gone = now, False
            if now - seen > (0 if self._is_gone else GONE_S):
                self._is_gone = True
                logger.warning("the evaluator is gone: fit %d ends without its results", self._fit)
                return
            if now - begun > patience_s(record):
                logger.warning(
                    "the evaluator is still at work after %.0f s: fit %d ends without its results",
                    now - begun,
                    self._fit,
                )
                return
            self._sleep(_POLL_S)

    def _is_alive(self) -> bool:
        try:
            return time.time() - self._alive.stat().st_mtime < _CLOCKS_APART_S
        except OSError:
            return False


def patience_s(record: Record) -> float:
    """Return how long trainers wait for the last evaluation.

    Based on the duration of earlier ones.
    """
    longest = max((found.seconds for found in record.done), default=0.0)
    return max(_LEAST_PATIENCE_S, _TIMES * longest)
