"""Batch prediction as plain values, for workers on other machines."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.batch.journal import Journal, Outcome
from timonel.batch.model import BatchModel
from timonel.batch.plan import JobSpec, ShardPlan
from timonel.batch.shards import predict_one
from timonel.data.runners.base import ShardWriter
from timonel.data.runners.exchange import Exchange, SharedFolder


class RemotePrediction:
    """A batch prediction, as its client sees it.

    Args:
        job: The job, whose folder all workers see at the same path.
    """

    def __init__(self, job: JobSpec) -> None:
        self._journal = Journal(Path(job.folder))
        self.portable = PortablePrediction(job)

    def offer(self, plans: Sequence[ShardPlan]) -> None:  # noqa: ARG002 - Beam brings them
        """Forget earlier errors."""
        self.portable.exchange.forget()

    def collect(self) -> None:
        """Do nothing: workers write into the journal."""

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of a shard.

        Raises:
            NotFoundError: It is not finished.
        """
        return self._journal.outcome(name)


@dataclass(frozen=True)
class PortablePrediction:
    """A batch prediction, from which each process of a worker makes its own model."""

    job: JobSpec

    @property
    def exchange(self) -> Exchange:
        """The journal's folder."""
        return SharedFolder(self.job.folder)

    def open(self) -> ShardWriter:
        """Return a writer with the loaded model.

        Raises:
            ModelError: The version cannot be loaded.
        """
        return _Writer(self.job)


class _Writer(ShardWriter):
    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._journal = Journal(Path(job.folder))
        self._model = BatchModel(job.model, Path(job.path), job.signature, self._journal.log)
        # Beam does not tell when the last bundle of a process has ended.
        weakref.finalize(self, self._model.close)

    def write(self, plan: ShardPlan, tick: Callable[[int], None]) -> None:
        if not self._journal.is_finished(plan, self._job.format):
            predict_one(plan, self._job, self._model, tick)
