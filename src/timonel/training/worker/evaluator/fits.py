"""``fit`` calls of an evaluator, which follow the trainers' checkpoints."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from timonel.training.worker.evaluation import validation
from timonel.training.worker.evaluation.early_stopping import PREFIX
from timonel.training.worker.evaluation.history import add_to_history
from timonel.training.worker.evaluation.record import Records
from timonel.training.worker.evaluator.follower import Follower
from timonel.training.worker.evaluator.report import Report
from timonel.training.worker.fit.checkpoints import Checkpoint
from timonel.training.worker.fit.model_fit import replace_fit, replayed_history
from timonel.training.worker.inputs import building
from timonel.training.worker.state.variables import restore

logger = logging.getLogger(__name__)


class EvaluatorFits:
    """``fit`` calls of an evaluator.

    Not thread-safe: scripts call ``fit`` from one thread.

    Args:
        keras: Keras module, ``keras`` or ``tf_keras``.
        follower: Follower of the checkpoints.
        records: Evaluation records.
        report: Report to the run.
    """

    def __init__(self, keras: Any, follower: Follower, records: Records, report: Report) -> None:
        self._keras = keras
        self._follower = follower
        self._records = records
        self._report = report
        self.count = 0
        """Number of ``fit`` calls so far."""

    def install(self) -> None:
        """Replace ``fit`` of this process's Keras."""
        replace_fit(self._keras, lambda _, model, arguments: self._fit(model, arguments))

    def _fit(self, model: Any, arguments: dict[str, Any]) -> Any:
        number, self.count = self.count, self.count + 1
        wanted = validation.evaluation_of(arguments)
        looks = validation.who_validates(self._keras, arguments.get("callbacks"))
        self._report.fit_begins(is_shared=looks is not None)
        if wanted is None:
            logger.info("fit %d has no validation data: there is nothing to evaluate", number)
        building.ensure_built(self._keras, model, arguments.get("x"))
        evaluate = None if wanted is None else functools.partial(_evaluate, model, wanted)
        final = self._follower.follow(number, evaluate)
        if final is None:
            logger.warning("the trainers are through without fit %d: the evaluator ends", number)
            raise SystemExit(0)
        restore_weights(model, final)
        record = self._records.read(number)
        if record.skipped:
            logger.info("fit %d: %d checkpoints were passed over", number, record.skipped)
        self._report.fit_ends(final)
        history = replayed_history(self._keras, model, final.progress)
        add_to_history(history, record)
        return history


def restore_weights(model: Any, found: Checkpoint) -> None:
    """Load the weights of a checkpoint into a model.

    Raises:
        TimonelError: The model differs from the saved one.
    """
    own = list(model.variables)
    restore(own, found.state.variables[: len(own)])


def _evaluate(model: Any, wanted: Mapping[str, Any], found: Checkpoint) -> dict[str, float]:
    restore_weights(model, found)
    results = model.evaluate(**wanted)
    return {
        f"{PREFIX}{name}": float(value) for name, value in results.items() if np.ndim(value) == 0
    }
