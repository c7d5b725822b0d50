"""Follow and evaluate a job's checkpoints.

Each new one at most once, the last one always.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from timonel.errors import CorruptError, NotFoundError, SpecError
from timonel.tracking.events import encode_number
from timonel.training.checkpoints import FINAL, age
from timonel.training.evaluations import (
    CheckpointEvaluation,
    EvaluationRecords,
    FitEvaluations,
    best_of,
    should_stop,
)
from timonel.training.option_values import Best, EarlyStopping
from timonel.training.worker.fit.checkpoints import Checkpoint, Checkpoints
from timonel.training.worker.state import checkpoint_format

logger = logging.getLogger(__name__)

_POLL_S = 0.2

Evaluate = Callable[[Checkpoint], Mapping[str, float]]
"""Evaluates a checkpoint in the model, and returns the metrics."""


@dataclass(frozen=True)
class EvaluationPolicy:
    """Follow-up of evaluations: best checkpoint and early stopping."""

    best: Best | None = None
    stopping: EarlyStopping | None = None
    ask_to_stop: Callable[[int], None] = lambda _: None


@dataclass(eq=False)
class Follower:
    """Evaluates the checkpoints of one ``fit`` call after another as they appear.

    If several appeared meanwhile, it evaluates the newest and counts the others as skipped.
    """

    checkpoints: Checkpoints
    records: EvaluationRecords
    policy: EvaluationPolicy
    _: KW_ONLY
    tell: Callable[[int, CheckpointEvaluation], None]  # reports a result to the run, once
    saved: Callable[[int], Collection[str]]  # returns a call's checkpoints that the run knows
    sleep: Callable[[float], Any] = time.sleep
    _left_out: set[Path] = field(default_factory=set)
    _asked: set[int] = field(default_factory=set)

    def follow(self, fit: int, evaluate: Evaluate | None) -> Checkpoint | None:
        """Evaluate a call's checkpoints until it is finished; return the last one.

        None if the trainers finished the script without finishing this call.
        """
        # Complete what a killed process left undone after its last evaluation.
        record = self.records.read(fit)
        for done in record.done:
            self.tell(fit, done)
        self._stop_if_due(fit, record)
        while True:
            # Checked first: once trainers have finished, all their checkpoints exist.
            is_over = self.records.is_trained
            folder = self.checkpoints.newest_folder(fit)
            is_last = folder is not None and folder.name == FINAL
            found = None
            if folder is not None and (is_last or evaluate is not None):
                found = self._next(fit, folder, holds=evaluate is not None)
            if found is not None and evaluate is not None:
                self._evaluate(fit, found, evaluate)
            if found is not None and is_last:
                return found
            if found is None:
                if is_over and not is_last:
                    return None
                self.sleep(_POLL_S)

    def _next(self, fit: int, folder: Path, *, holds: bool) -> Checkpoint | None:
        """Read a checkpoint, unless it was evaluated and is not the last."""
        is_last = folder.name == FINAL
        record = self.records.read(fit)
        is_done = record.has(folder.name)
        if folder in self._left_out or (is_done and not is_last):
            return None
        if holds and not is_done:
            # Before reading, so that it is not deleted meanwhile.
            self.records.write(fit, record.model_copy(update={"evaluating": folder.name}))
        try:
            return checkpoint_format.read(folder)
        except (NotFoundError, CorruptError) as error:
            if is_last:
                raise
            if folder.is_dir():  # else it was deleted: there is a newer one
                self._left_out.add(folder)
                logger.warning("Skipping the checkpoint %s: %s", folder, error)
            return None

    def _evaluate(self, fit: int, found: Checkpoint, evaluate: Evaluate) -> None:
        name, progress = found.folder.name, found.progress
        record = self.records.read(fit)
        if record.has(name):
            return  # the last one, by an earlier process of this evaluator
        began = time.monotonic()
        metrics = evaluate(found)
        done = CheckpointEvaluation(
            checkpoint=name,
            epoch=progress.next_epoch if progress.step else max(0, progress.next_epoch - 1),
            step=progress.steps,
            is_epochs_end=not progress.step,
            values={name: encode_number(value) for name, value in metrics.items()},
            seconds=round(time.monotonic() - began, 3),
        )
        self._require_metrics(done)
        every = (*record.done, done)
        best = None if self.policy.best is None else best_of(every, self.policy.best)
        update = {
            "evaluating": None,
            "best": None if best is None else best.checkpoint,
            "skipped": len(passed_over(self.saved(fit), [one.checkpoint for one in every])),
            "done": every,
        }
        after = record.model_copy(update=update)
        # Before reporting: if this process is killed in between, the next one reports it.
        self.records.write(fit, after)
        # With progress, a lost process restarts without limit.
        self.checkpoints.note_steps(done.step, resting=True)
        self.tell(fit, done)
        self._stop_if_due(fit, after)

    def _require_metrics(self, done: CheckpointEvaluation) -> None:
        stopping = self.policy.stopping
        asked: dict[str, Best | None] = {
            "keep_best": self.policy.best,
            "early_stopping": None if stopping is None else stopping.by,
        }
        for option, by in asked.items():
            if by is not None and by.metric not in done.values:
                raise SpecError(
                    f"The evaluation has no metric {by.metric} for {option}",
                    hint=f"available: {', '.join(done.values)}",
                )

    def _stop_if_due(self, fit: int, record: FitEvaluations) -> None:
        stopping = self.policy.stopping
        if stopping is None or record.has(FINAL) or not should_stop(record.done, stopping):
            return
        if fit not in self._asked:
            logger.info(
                "%s did not improve for %d checkpoints. Stopping training.",
                stopping.by.metric,
                stopping.patience,
            )
        # Repeated with each evaluation: a trainer that was killed may have consumed the first
        # request.
        self._asked.add(fit)
        self.policy.ask_to_stop(fit)


def passed_over(saved: Collection[str], done: Collection[str]) -> set[str]:
    """Return the saved checkpoints of a call that were skipped for a newer one."""
    newest = max((age(name) for name in done), default=(-1, 0))
    return {name for name in saved if name not in done and age(name) < newest}
