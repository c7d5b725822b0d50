"""Predict shards with overlapping work.

A shard may be predicted in any process that sees the files, more than once: the result is the same.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from timonel.batch.model import BatchModel, Predicted
from timonel.batch.plan import PartPlan, PredictionSpec
from timonel.batch.readers import Failure, Load, ReadImage, read_batches
from timonel.batch.writers import Writer
from timonel.data.journal import Journal, Outcome
from timonel.data.manifest import Rejected
from timonel.errors import DataError
from timonel.processes.ahead import call_ahead
from timonel.storage.atomic import replacing
from timonel.storage.digests import digest_file

Result = tuple[list[Predicted], list[Failure], Sequence[ReadImage]]
Tick = Callable[[int], None]


class PredictionOutcome(Outcome):
    """Result of predicting one shard."""

    images: tuple[ReadImage, ...] = Field(default=(), description="The image files that it read.")


class PredictionJournal(Journal[PredictionOutcome]):
    """Journal of a batch prediction."""

    work: ClassVar[str] = "predict"
    _outcome_type = PredictionOutcome

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.log = root / "model.log"
        self.folder = root / "folder"
        """A folder of shards, before it is published."""


def predict_all(
    plans: Sequence[PartPlan],
    job: PredictionSpec,
    model: BatchModel,
    journal: PredictionJournal,
    tick: Tick,
) -> Iterator[PredictionOutcome]:
    """Predict shards in order; yield the outcome of each, which is in the journal.

    Threads read and prepare batches, also of the next shards, while the model computes.
    """
    with contextlib.closing(_ahead(plans, job, model)) as results:
        for plan in plans:
            own = itertools.takewhile(lambda result: result is not None, results)
            yield _write(plan, job, journal, own, tick)


def _ahead(
    plans: Iterable[PartPlan], job: PredictionSpec, model: BatchModel
) -> Generator[Result | None, None, None]:
    """Yield the result of each batch in order, and None after each shard."""
    calls = (partial(_predict, load, model) for load in _loads(plans, job))
    # Half of the threads wait for the model, the others read.
    return call_ahead(calls, threads=2 * model.threads, ahead=4 * model.threads, name="predict")


def _loads(plans: Iterable[PartPlan], job: PredictionSpec) -> Iterator[Load | None]:
    for plan in plans:
        yield from read_batches(plan, job)
        yield None


def _predict(load: Load | None, model: BatchModel) -> Result | None:
    if load is None:
        return None
    rows = load()
    predicted, failures = model.predict(rows)
    return predicted, [*rows.failures, *failures], rows.images


def _write(
    plan: PartPlan,
    job: PredictionSpec,
    journal: PredictionJournal,
    results: Iterable[Result | None],
    tick: Tick,
) -> PredictionOutcome:
    path = journal.content / plan.name
    failures: list[Failure] = []
    images: list[ReadImage] = []
    with replacing(path) as file:
        writer = Writer(file, job.format, raw=job.raw)
        for result in results:
            assert result is not None
            predicted, failed, read = result
            for each in predicted:
                writer.add({"key": each.rows.keys, **each.rows.kept, **each.outputs})
            failures += failed
            images += read
            tick(sum(len(each.rows) for each in predicted) + len(failed))
        writer.close()
        if writer.rows + len(failures) != plan.records:
            raise DataError(
                f"{plan.uri or plan.images[0][1]} changed while it was read: "
                f"{writer.rows + len(failures):,} rows instead of {plan.records:,}",
                hint="run the same command again",
            )
    outcome = PredictionOutcome(
        name=plan.name,
        digest=digest_file(path),
        records=writer.rows,
        rejected=tuple(Rejected(key=key, reason=reason) for key, reason in failures),
        images=tuple(images),
    )
    journal.save(outcome)
    return outcome
