"""Predict one shard, or many with overlapping work.

`predict_one` is a function of a plan and a job. It may run in any process that sees the files, more
than once: the result is the same.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from timonel.batch.journal import Journal, Outcome
from timonel.batch.model import BatchModel, Predicted
from timonel.batch.plan import JobSpec, ShardPlan
from timonel.batch.readers import Failure, Load, read_batches
from timonel.batch.writers import Writer
from timonel.storage.atomic import aside_name, sync, unwritable
from timonel.storage.digests import digest_file

Result = tuple[list[Predicted], list[Failure]]
Tick = Callable[[int], None]


def predict_one(plan: ShardPlan, job: JobSpec, model: BatchModel, tick: Tick) -> Outcome:
    """Predict a shard, and record its outcome in the journal.

    Args:
        plan: The shard.
        job: The batch prediction.
        model: Its model.
        tick: Called with a number of finished rows.

    Raises:
        InputError: The folder cannot be written, or the input cannot be read now.
        DataError: The input is damaged.
        ModelError: The model cannot be used.
    """
    (outcome,) = predict_all([plan], job, model, tick)
    return outcome


def predict_all(
    plans: Sequence[ShardPlan], job: JobSpec, model: BatchModel, tick: Tick
) -> Iterator[Outcome]:
    """Predict shards in order; yield the outcome of each. See `predict_one`.

    Threads read and prepare batches, also of the next shards, while the model computes.
    """
    with contextlib.closing(_ahead(plans, job, model)) as results:
        for plan in plans:
            own = itertools.takewhile(lambda result: result is not None, results)
            yield _write(plan, job, own, tick)


def _ahead(
    plans: Iterable[ShardPlan], job: JobSpec, model: BatchModel
) -> Generator[Result | None, None, None]:
    """Yield the result of each batch in order, and None after each shard."""
    pending: deque[Future[Result] | None] = deque()
    # Half of the threads wait for the model, the others read.
    with ThreadPoolExecutor(2 * model.threads, thread_name_prefix="predict") as pool:
        try:
            for load in _loads(plans, job):
                pending.append(None if load is None else pool.submit(_predict, load, model))
                if len(pending) > 4 * model.threads:
                    yield _result(pending.popleft())
            while pending:
                yield _result(pending.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _loads(plans: Iterable[ShardPlan], job: JobSpec) -> Iterator[Load | None]:
    for plan in plans:
        yield from read_batches(plan, job)
        yield None


def _result(future: Future[Result] | None) -> Result | None:
    return None if future is None else future.result()


def _predict(load: Load, model: BatchModel) -> Result:
    rows = load()
    predicted, failures = model.predict(rows)
    return predicted, [*rows.failures, *failures]


def _write(plan: ShardPlan, job: JobSpec, results: Iterable[Result | None], tick: Tick) -> Outcome:
    journal = Journal(Path(job.folder))
    path = journal.part(plan, job.format)
    aside = path.with_name(aside_name(path.name))
    failures: list[Failure] = []
    try:
        with aside.open("wb", buffering=1 << 20) as file:
            writer = Writer(file, job.format)
            for result in results:
                assert result is not None
                predicted, failed = result
                for each in predicted:
                    writer.add({"key": each.rows.keys, **each.rows.kept, **each.outputs})
                failures += failed
                tick(sum(len(each.rows) for each in predicted) + len(failed))
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        digest = digest_file(aside) if writer.rows else None
        if writer.rows:
            aside.replace(path)
            sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    outcome = Outcome(shard=plan.name, rows=writer.rows, digest=digest, failures=tuple(failures))
    journal.save(outcome)
    return outcome
