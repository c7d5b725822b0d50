"""Which distribution strategy a task uses, and how it is built."""

from __future__ import annotations

from typing import Any

from timonel.errors import SpecError
from timonel.training.settings import Settings, StrategyName
from timonel.training.worker.cluster import Cluster


def check_settings(settings: Settings) -> None:
    """Check that what was asked for goes together.

    Raises:
        SpecError: It does not; the message says what would.
    """
    wanted = settings.distribution
    choose(wanted.strategy, workers=wanted.workers, devices=wanted.devices_per_worker)


def choose(wanted: StrategyName, *, workers: int, devices: int) -> StrategyName:
    """Return the strategy that a job of this size uses; ``none`` for one device without one.

    Args:
        wanted: What the user asked for.
        workers: How many processes train.
        devices: How many devices each of them has.

    Raises:
        SpecError: The strategy cannot be used with that many workers.
    """
    if wanted is StrategyName.MIRRORED and workers > 1:
        raise SpecError(
            f"expected one worker with the strategy 'mirrored', got {workers}",
            hint="use --strategy auto, or --devices-per-worker instead of --workers",
        )
    if wanted is not StrategyName.AUTO:
        return wanted
    if workers > 1:
        return StrategyName.MULTI_WORKER
    return StrategyName.MIRRORED if devices > 1 else StrategyName.NONE


def build(name: StrategyName, cluster: Cluster) -> Any:
    """Build a strategy; with several workers this blocks until all of them have come.

    TensorFlow must be configured but not initialised.

    Returns:
        A ``tf.distribute.Strategy``, or None for one device without a strategy.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    from timonel.training.worker import _private  # noqa: PLC0415 - imports TensorFlow

    if name is StrategyName.MIRRORED:
        return tf.distribute.MirroredStrategy()
    if name is StrategyName.MULTI_WORKER:
        if len(cluster.trainers) > 1:
            _private.configure_coordination(cluster)
        return tf.distribute.MultiWorkerMirroredStrategy()
    return None
