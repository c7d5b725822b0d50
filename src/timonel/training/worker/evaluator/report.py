"""Telling a run what an evaluator has found, each result once."""

from __future__ import annotations

from pathlib import Path

from timonel.tracking import RunWriter
from timonel.tracking.events import FILE_NAME, EventReader
from timonel.training.worker.evaluation.early_stopping import PREFIX
from timonel.training.worker.evaluation.record import Evaluated
from timonel.training.worker.fit.checkpoints import Checkpoint
from timonel.training.worker.reports.summaries import Summaries


class Report:
    """Tells a run of evaluations, each once.

    Args:
        run: The run's writer.
        task_id: The evaluator's name.
        summaries: TensorBoard's event files.
    """

    def __init__(self, run: RunWriter, task_id: str, summaries: Summaries) -> None:
        self._run = run
        self._task_id = task_id
        self._summaries = summaries
        self._events = EventReader(run.folder / FILE_NAME)
        self._told: set[tuple[int, str]] = set()
        self._saved: dict[int, set[str]] = {}
        self._epochs_before = 0
        self._is_shared = False

    def fit_begins(self, *, is_shared: bool) -> None:
        """Note that a call begins.

        Args:
            is_shared: The trainers validate too at the ends of its epochs, and tell the run.
        """
        self._is_shared = is_shared

    def tell(self, fit: int, done: Evaluated) -> None:
        """Record the metrics of a checkpoint, unless they are recorded."""
        self._look()
        if (fit, done.checkpoint) in self._told:
            return
        self._told.add((fit, done.checkpoint))
        if self._is_shared and done.is_epochs_end:
            self._summarise(done)
            return
        self._run.event(
            "metrics",
            metrics=dict(done.values),
            step=done.step,
            epoch=self._epochs_before + done.epoch,
            task=self._task_id,
            fit=fit,
            fit_epoch=done.epoch + 1,
            is_epochs_end=done.is_epochs_end,
            checkpoint=done.checkpoint,
            seconds=done.seconds,
        )
        self._summarise(done)

    def _summarise(self, done: Evaluated) -> None:
        values = {name.removeprefix(PREFIX): value for name, value in done.metrics.items()}
        self._summaries.evaluation(values, done.step)

    def saved(self, fit: int) -> set[str]:
        """Return the names of the checkpoints of a call that were reported as saved."""
        self._look()
        return self._saved.get(fit, set())

    def fit_ends(self, final: Checkpoint) -> None:
        """Note that a call is finished: epochs of the next ones are counted on from it."""
        self._epochs_before += final.progress.next_epoch

    def _look(self) -> None:
        while events := self._events.read():
            for event in events:
                if event["type"] == "checkpoint":
                    name = Path(str(event.get("path"))).name
                    self._saved.setdefault(int(event.get("fit", 0)), set()).add(name)
                elif event["type"] == "metrics" and event.get("task") == self._task_id:
                    self._told.add((int(event["fit"]), str(event["checkpoint"])))
