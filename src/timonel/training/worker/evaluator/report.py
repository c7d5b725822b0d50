"""Report an evaluator's results to a run, each once."""

from __future__ import annotations

from pathlib import Path

from timonel.tracking import RunWriter
from timonel.tracking.events import FILE_NAME, EventReader
from timonel.training.worker.evaluation.early_stopping import PREFIX
from timonel.training.worker.evaluation.record import Evaluated
from timonel.training.worker.fit.checkpoints import Checkpoint
from timonel.training.worker.reports.summaries import Summaries


class Report:
    """Reports evaluations to a run, each once.

    Args:
        run: Writer of the run.
        task_id: Task ID of the evaluator.
        summaries: TensorBoard event files.
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
        """Record the start of a call.

        Args:
            is_shared: Whether the trainers also validate at epoch ends, and report to the run.
        """
        self._is_shared = is_shared

    def tell(self, fit: int, done: Evaluated) -> None:
        """Report the metrics of a checkpoint, unless they have been reported."""
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
        """Return the names of a call's checkpoints that were reported as saved."""
        self._look()
        return self._saved.get(fit, set())

    def fit_ends(self, final: Checkpoint) -> None:
        """Record the end of a call, which offsets later epochs."""
        self._epochs_before += final.progress.next_epoch

    def _look(self) -> None:
        while events := self._events.read():
            for event in events:
                if event["type"] == "checkpoint":
                    name = Path(str(event.get("path"))).name
                    self._saved.setdefault(int(event.get("fit", 0)), set()).add(name)
                elif event["type"] == "metrics" and event.get("task") == self._task_id:
                    self._told.add((int(event["fit"]), str(event["checkpoint"])))
