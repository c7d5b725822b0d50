"""Batch prediction as plain values, for workers on other machines."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.batch.model import BatchModel
from timonel.batch.plan import PartPlan, PredictionSpec
from timonel.batch.shards import PredictionJournal, predict_all
from timonel.data.runners.base import ShardWriter
from timonel.data.runners.worker_wheel import all_packages
from timonel.storage.atomic import temporary_prefix


@dataclass(frozen=True)
class PortablePrediction:
    """A batch prediction, from which each process of a worker makes its own model."""

    job: PredictionSpec

    def journal(self, root: Path) -> PredictionJournal:
        """Return the journal in a folder."""
        return PredictionJournal(root)

    @property
    def packages(self) -> Sequence[str]:
        """All packages: the model may need any."""
        return all_packages()

    def open(self) -> ShardWriter:
        """Return a writer with the loaded model."""
        return _Writer(self.job)


class _Writer(ShardWriter):
    def __init__(self, job: PredictionSpec) -> None:
        self._job = job
        self._folder = tempfile.TemporaryDirectory(prefix=temporary_prefix())
        log = Path(self._folder.name, "model.log")
        self._model = BatchModel(job, log)
        # Beam does not tell when the last bundle of a process has ended.
        weakref.finalize(self, self._model.close)

    def write(
        self, plan: PartPlan, journal: PredictionJournal, tick: Callable[[int], None]
    ) -> None:
        for _ in predict_all([plan], self._job, self._model, journal, tick):
            pass
