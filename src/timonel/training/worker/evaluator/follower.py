"""Following the checkpoints of a job: each new one is evaluated once, the last one always."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.errors import CorruptError, NotFoundError, SpecError
from timonel.training.worker.evaluation.early_stopping import Stopping, best_of
from timonel.training.worker.evaluation.record import Evaluated, Record, Records, evaluated
from timonel.training.worker.fit.checkpoints import Checkpoint, Checkpoints
from timonel.training.worker.state import files
from timonel.training.worker.state.best import Best

logger = logging.getLogger(__name__)

_POLL_S = 0.2

Evaluate = Callable[[Checkpoint], Mapping[str, float]]
"""Puts a checkpoint's weights into the model, evaluates it, and returns the metrics."""


@dataclass(frozen=True)
class Wanted:
    """What follows from the results.

    Attributes:
        best: The metric by which the best checkpoint is kept, if one is.
        stopping: When training is to end, if by this.
        ask_to_stop: Asks the trainers to end a ``fit`` call.
    """

    best: Best | None = None
    stopping: Stopping | None = None
    ask_to_stop: Callable[[int], None] = lambda _: None


class Follower:
    """Evaluates the checkpoints of one ``fit`` call after the other as they come.

    Of several that have come meanwhile the newest is evaluated, and the others are counted.

    Args:
        checkpoints: The job's checkpoints.
        records: Where it is noted what was done.
        wanted: What follows from the results.
        tell: Tells the run of a result, unless it knows it already.
        saved: Returns the names of all checkpoints of a call that the run knows of.
        sleep: Waits; a test passes its own.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        records: Records,
        wanted: Wanted,
        *,
        tell: Callable[[int, Evaluated], None],
        saved: Callable[[int], Collection[str]],
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._checkpoints = checkpoints
        self._records = records
        self._wanted = wanted
        self._tell = tell
        self._saved = saved
        self._sleep = sleep
        self._left_out: set[Path] = set()
        self._asked: set[int] = set()

    def follow(self, fit: int, evaluate: Evaluate | None) -> Checkpoint | None:
        """Evaluate a call's checkpoints until it is finished, and return the last one.

        Args:
            fit: The number of the call.
            evaluate: Evaluates one; None if there is nothing to evaluate on.

        Returns:
            None if the trainers are through the script without having finished this call.

        Raises:
            CorruptError: The last checkpoint is damaged.
        """
        self._go_on(fit)
        while True:
            # Asked first: what trainers have saved is there once they are through.
            is_over = self._records.is_trained
            folder = self._checkpoints.newest_folder(fit)
            is_last = folder is not None and folder.name == files.FINAL
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
                self._sleep(_POLL_S)

    def _go_on(self, fit: int) -> None:
        """Do what a process that was killed may have left undone after its last evaluation."""
        record = self._records.read(fit)
        for done in record.done:
            self._tell(fit, done)
        self._stop_if_due(fit, record)

    def _next(self, fit: int, folder: Path, *, holds: bool) -> Checkpoint | None:
        """Read a checkpoint, unless it was evaluated and others will come."""
        is_last = folder.name == files.FINAL
        record = self._records.read(fit)
        is_done = record.has(folder.name)
        if folder in self._left_out or (is_done and not is_last):
            return None
        if holds and not is_done:
            # Before it is read, so that it is not removed meanwhile.
            self._records.write(fit, record.model_copy(update={"evaluating": folder.name}))
        try:
            return files.read(folder)
        except (NotFoundError, CorruptError) as error:
            if is_last:
                raise
            if folder.is_dir():  # else it was removed: another one is there
                self._left_out.add(folder)
                logger.warning("the checkpoint %s is left out: %s", folder, error)
            return None

    def _evaluate(self, fit: int, found: Checkpoint, evaluate: Evaluate) -> None:
        name, progress = found.folder.name, found.progress
        record = self._records.read(fit)
        if record.has(name):
            return  # the last one, by the process that this one goes on for
        began = time.monotonic()
        metrics = evaluate(found)
        done = evaluated(
            name,
            epoch=progress.next_epoch if progress.step else max(0, progress.next_epoch - 1),
            step=progress.steps,
            is_epochs_end=not progress.step,
            metrics=metrics,
            seconds=time.monotonic() - began,
        )
        self._require_metrics(done)
        every = (*record.done, done)
        best = None if self._wanted.best is None else best_of(every, self._wanted.best)
        update = {
            "evaluating": None,
            "best": None if best is None else best.checkpoint,
            "skipped": len(passed_over(self._saved(fit), [one.checkpoint for one in every])),
            "done": every,
        }
        after = record.model_copy(update=update)
        # Before the run is told: should this process be killed in between, the next one tells it.
        self._records.write(fit, after)
        # A process that is lost after it got further is started again, however often.
        self._checkpoints.note_steps(done.step, resting=True)
        self._tell(fit, done)
        self._stop_if_due(fit, after)

    def _require_metrics(self, done: Evaluated) -> None:
        stopping = self._wanted.stopping
        asked: dict[str, Best | None] = {
            "keep_best": self._wanted.best,
            "early_stopping": None if stopping is None else stopping.by,
        }
        for option, by in asked.items():
            if by is not None and by.metric not in done.values:
                raise SpecError(
                    f"expected {option} by a metric of the evaluation, got {by.metric}",
                    hint=f"it gives {', '.join(done.values)}",
                )

    def _stop_if_due(self, fit: int, record: Record) -> None:
        stopping = self._wanted.stopping
        if stopping is None or record.has(files.FINAL) or not stopping.is_due(record.done):
            return
        if fit not in self._asked:
            logger.info(
                "%s got no better for %d checkpoints: training is asked to end",
                stopping.by.metric,
                stopping.patience,
            )
        # Again with each that follows: a trainer that was killed may have taken the first request.
        self._asked.add(fit)
        self._wanted.ask_to_stop(fit)


def passed_over(saved: Collection[str], done: Collection[str]) -> set[str]:
    """Return the checkpoints that were not evaluated though a newer one was.

    Args:
        saved: The names of all checkpoints of a call.
        done: The names of those that were evaluated.
    """
    newest = max((files.age(name) for name in done), default=(-1, 0))
    return {name for name in saved if name not in done and files.age(name) < newest}
