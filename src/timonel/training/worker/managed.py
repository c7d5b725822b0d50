"""Set up strategy tasks: scope, shards, ``fit`` hooks, and export."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from timonel.data import load_registry
from timonel.storage.atomic import sweep
from timonel.tracking import RunWriter
from timonel.training.settings import Settings, StrategyName
from timonel.training.worker import exporting, optimizing
from timonel.training.worker.context import TrainingContext
from timonel.training.worker.evaluation.record import Records
from timonel.training.worker.evaluation.trainers import Trainers
from timonel.training.worker.fit import loops
from timonel.training.worker.fit.agreement import Agreement, exchange_over
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.inputs import caches, sharding
from timonel.training.worker.private import (
    central_storage,
    hidden_state,
    keras_fit,
    ps_variables,
    replica_steps,
)
from timonel.training.worker.termination import Termination

logger = logging.getLogger(__name__)

_SPLITS = {"train": "training"}


def require_supported(keras: Any, name: StrategyName) -> None:
    """Check that this Keras version was verified with distributed ``fit``, if needed.

    Raises:
        TimonelError: It was not.
    """
    if name is not StrategyName.NONE:
        keras_fit.require_supported(keras.__name__, keras.__version__)


@contextlib.contextmanager
def prepared(
    keras: Any,
    context: TrainingContext,
    run: RunWriter | None,
    progress: Path,
    *,
    settings: Settings | None = None,
    termination: Termination | None = None,
) -> Iterator[Fits]:
    """Enter the strategy's scope and adapt ``data.load`` and ``fit`` to it.

    Args:
        keras: The Keras module that the script uses.
        context: The job's training context.
        run: The chief's run writer; None in other tasks.
        progress: The file from which the engine reads the task's progress.
        settings: How the job trains.
        termination: Tells whether the process was asked to stop.
    """
    settings = settings or Settings()
    strategy = context.strategy
    replicas = strategy.num_replicas_in_sync if strategy is not None else 1
    served = settings.uses_parameter_servers
    # With parameter servers only the chief runs the script; it distributes all data itself.
    workers = 1 if served else len(context.cluster.trainers)
    load_registry.configure(
        load_registry.InputShard(
            0 if served else context.cluster.rank,
            workers,
            max(1, replicas // workers),
            per_replica=settings.batches.batch_size_is == "per-replica",
        )
    )
    hidden_state.make_generators_restorable(keras)
    caches.install(context.cluster)
    several = strategy is not None and workers > 1
    records = Records(context.job_dir) if settings.evaluation.evaluator else None
    checkpoints = Checkpoints(
        context.checkpoint_dir,
        writes=run is not None,
        progress=progress,
        policy=settings.checkpoints,
        records=records,
    )
    checkpoints.tidy()
    if run is not None:
        checkpoints.fill()
    if several and settings.checkpoints.checkpoint_uri is not None:
        wait_for_all(strategy)
        checkpoints.fill()
    agreement = Agreement(
        exchange_over(strategy) if several else None,
        is_chief=context.is_chief,
        requests=context.job_dir / "requests",
    )
    part = functools.partial(wait_for_all, strategy) if several else lambda: None
    loop = _served_loop(keras, context, settings, agreement, run) if served else None
    fits = Fits(
        keras,
        checkpoints,
        run=run,
        tensorboard=context.tensorboard_dir,
        strategy=strategy,
        workers=workers,
        agreement=agreement,
        termination=termination,
        part=part,
        stop_on_nan=settings.faults.stop_on_nan,
        loop=loop,
        last_words=progress.with_name("if-out-of-memory.json"),
    )
    loops.configure(
        loops.Services(
            checkpoints.beside("loops"),
            strategy,
            workers,
            agreement,
            termination or Termination(),
            part,
            fits.prepare,
        )
    )
    if replicas > 1 and not served:
        replica_steps.install(keras, functools.partial(_warn, run))
    optimizing.install(keras, fits, settings, replicas)
    if records is not None:
        if run is not None:
            records.begin_training()
        trainers = Trainers(keras, records, progress.parent)
        fits.before_fit.append(trainers.fit_begins)
        fits.after_fit.append(trainers.fit_ends)
    fits.install()
    if run is not None:
        # Remove a partial export from before the chief was killed.
        sweep(context.job_dir)
        load_registry.on_load.append(lambda record: _report_load(run, record))
    if strategy is None:
        yield fits
        return
    if keras.__name__ == "keras" and not served:
        keras_fit.install_keras_hooks()
        central_storage.add_in_place()
    if replicas > 1:
        _deal_out_inputs(strategy, workers, fits.take_training_data)
    with strategy.scope():
        yield fits


def finish(context: TrainingContext, fits: Fits, run: RunWriter | None) -> None:
    """Export the model, then wait for all tasks.

    The chief hosts the cluster's services.
    """
    reason = exporting.export_fitted(context.export_dir, fits.last)
    if reason is not None:
        _warn(run, reason)
    if context.coordinator is not None:
        return  # the engine stops workers and parameter servers
    if context.strategy is not None and len(context.cluster.trainers) > 1:
        wait_for_all(context.strategy)


def _served_loop(
    keras: Any,
    context: TrainingContext,
    settings: Settings,
    agreement: Agreement,
    run: RunWriter | None,
) -> Any:
    """Return the loop behind ``fit`` for a job with parameter servers."""
    from timonel.training.worker.ps import loop, roles  # noqa: PLC0415 - few jobs have them

    roles.keep_metrics_local(keras)
    found = loop.ParameterServerLoop(
        keras,
        context.strategy,
        context.coordinator,
        settings,
        workers=len(context.cluster.tasks["worker"]),
        is_asked=lambda: bool(agreement.asked),
        tell=functools.partial(run.event, "log", level="info") if run is not None else None,
    )
    ps_variables.watch_unscheduled(context.strategy, lambda: _warn(run, loop.UNSCHEDULED))
    found.install()
    exporting.surrounding = loop.localised
    return found


def wait_for_all(strategy: Any) -> None:
    """Wait until every task has arrived here, or a peer has left.

    A peer may finish the collective's last step and exit before this task has read its part.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    def count() -> Any:
        return strategy.reduce("SUM", strategy.run(tf.constant, args=(1.0,)), axis=None)

    try:
        tf.function(count)().numpy()
    except tf.errors.OpError as error:
        logger.info("a peer left first: %s", type(error).__name__)


def _deal_out_inputs(strategy: Any, workers: int, takes_training_data: Callable[[], bool]) -> None:
    original = strategy.experimental_distribute_dataset

    def distribute(dataset: Any, options: Any = None) -> Any:
        dealt = sharding.distribute(
            strategy,
            dataset,
            sharded=workers > 1 and load_registry.is_sharded(dataset),
            fill=takes_training_data(),
        )
        return original(dataset, options) if dealt is None else dealt

    # Used by both Keras' fit and custom loops.
    strategy.experimental_distribute_dataset = distribute


def _report_load(run: RunWriter, record: load_registry.LoadRecord) -> None:
    run.event(
        "dataset-loaded",
        uri=record.uri,
        digest=record.digest,
        split=record.split,
        batch_size=record.batch_size,
        records=record.records,
        steps=record.steps,
        label_mode=record.label_mode,
        preprocessing=record.preprocessing.model_dump(mode="json"),
    )
    left_out = record.records - record.steps * record.batch_size
    if left_out > 0:
        _warn(
            run,
            f"Each epoch skips {left_out} of {record.records} "
            f"{_SPLITS.get(record.split, record.split)} examples (different ones each time): they "
            f"do not fill a batch of {record.batch_size}.",
        )


def _warn(run: RunWriter | None, message: str) -> None:
    """Log a warning; the chief also records it as an event."""
    logger.warning("%s", message)
    if run is not None:
        run.event("log", level="warning", message=message)
