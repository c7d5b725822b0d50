"""Which distribution strategy a task uses, what goes together with it, and how it is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timonel.errors import SpecError
from timonel.training.settings import Settings, StrategyName
from timonel.training.worker.cluster import Cluster
from timonel.training.worker.evaluation.judgement import parse_stopping
from timonel.training.worker.profiling import parse_steps
from timonel.training.worker.state.best import parse_best

_OF_ONE_WORKER = frozenset(
    {
        StrategyName.ONE_DEVICE,
        StrategyName.MIRRORED,
        StrategyName.CENTRAL_STORAGE,
        StrategyName.TPU,
    }
)
_REDUCING = frozenset({StrategyName.MIRRORED, StrategyName.MULTI_WORKER})
"""Where replicas add up their gradients among themselves."""


def check_settings(settings: Settings) -> None:
    """Check that what was asked for goes together.

    Raises:
        SpecError: It does not; the message says what would.
    """
    wanted = settings.distribution
    chosen = choose(
        wanted.strategy,
        workers=wanted.workers,
        devices=wanted.devices_per_worker,
        ps=settings.parameter_servers.ps,
    )
    for message, hint in _contradictions(settings, chosen):
        raise SpecError(message, hint=hint)


def choose(
    wanted: StrategyName, *, workers: int, devices: int, ps: int = 0, tpu: bool = False
) -> StrategyName:
    """Return the strategy that a job of this size uses; ``none`` for one device without one.

    Left to itself it follows tensorflow-cloud's rule: a TPU where there is one, several workers
    multi-worker, several devices mirrored, else nothing; and parameter servers where they are
    asked for.

    Args:
        wanted: What the user asked for.
        workers: How many processes train.
        devices: How many devices each of them has.
        ps: How many parameter servers there are.
        tpu: Whether this machine has a TPU, as far as that is known.

    Raises:
        SpecError: The strategy cannot be used with that many workers.
    """
    if wanted in _OF_ONE_WORKER and workers > 1:
        raise SpecError(
            f"expected one worker with the strategy '{wanted.value}', got {workers}",
            hint="use --strategy auto, or --devices-per-worker instead of --workers",
        )
    if wanted is not StrategyName.AUTO:
        return wanted
    if ps:
        return StrategyName.PARAMETER_SERVER
    if workers > 1:
        return StrategyName.MULTI_WORKER
    if tpu:
        return StrategyName.TPU
    return StrategyName.MIRRORED if devices > 1 else StrategyName.NONE


def build(name: StrategyName, cluster: Cluster, settings: Settings) -> Any:
    """Build a strategy; with several workers this blocks until all of them have come.

    TensorFlow must be configured but not initialised.

    Returns:
        A ``tf.distribute.Strategy``, or None for one replica without a strategy.

    Raises:
        SpecError: This machine lacks what the strategy needs.
    """
    if name is StrategyName.ONE_DEVICE:
        return _one_device(settings.distribution.devices_per_worker)
    if name is StrategyName.MIRRORED:
        return _mirrored(settings)
    if name is StrategyName.CENTRAL_STORAGE:
        return _central_storage()
    if name is StrategyName.MULTI_WORKER:
        return _multi_worker(cluster, settings)
    if name is StrategyName.PARAMETER_SERVER:
        from timonel.training.worker.ps import roles  # noqa: PLC0415 - imports TensorFlow

        return roles.strategy_for(cluster)
    return _tpu() if name is StrategyName.TPU else None


def _contradictions(settings: Settings, chosen: StrategyName) -> Iterator[tuple[str, str]]:
    """Yield what does not go together, each as a message and a hint."""
    if settings.distribution.strategy is StrategyName.NONE:
        yield from _left_alone(settings)
    yield from _of_communication(settings, chosen)
    yield from _of_numerics(settings, chosen)
    yield from _of_parameter_servers(settings, chosen)
    yield from _of_evaluation(settings)
    yield from _of_profiling(settings, chosen)


def _left_alone(settings: Settings) -> Iterator[tuple[str, str]]:
    usual = Settings()
    for group in ("numerics", "batches", "devices", "profiling"):
        for name, value in getattr(settings, group).model_dump().items():
            if value != getattr(getattr(usual, group), name):
                yield _without(name, "the strategy 'none', which leaves all of it to the script")
    if settings.distribution.devices_per_worker > 1:
        yield _without("devices_per_worker", "the strategy 'none': the script sets up its devices")


def _of_communication(settings: Settings, chosen: StrategyName) -> Iterator[tuple[str, str]]:
    asked = settings.distribution
    if asked.cross_device_ops is not None and chosen is not StrategyName.MIRRORED:
        yield (
            f"expected the strategy 'mirrored' for --cross-device-ops, got {_shown(chosen)}",
            "between workers it is --collectives; for one worker give --devices-per-worker 2",
        )
    if asked.collectives != "auto" and chosen is not StrategyName.MULTI_WORKER:
        yield (
            f"expected several workers for --collectives, got {_shown(chosen)}",
            "between the devices of one worker it is --cross-device-ops; or give --workers 2",
        )
    if asked.compress_gradients is not None and chosen not in _REDUCING:
        yield (
            f"expected replicas that add up for --compress-gradients, got {_shown(chosen)}",
            "give --workers 2 or more, or leave out --compress-gradients",
        )


def _of_numerics(settings: Settings, chosen: StrategyName) -> Iterator[tuple[str, str]]:
    asked = settings.numerics
    if asked.xla and asked.deterministic:
        yield _without("xla", "--deterministic: XLA lacks deterministic forms of some operations")
    if asked.xla and chosen not in {StrategyName.NONE, StrategyName.ONE_DEVICE}:
        yield (
            f"expected one replica for --xla, got {_shown(chosen)}",
            "XLA cannot compile what replicas tell each other: leave out --xla or the replicas",
        )
    if asked.precision == "float16" and chosen is StrategyName.CENTRAL_STORAGE:
        yield (
            "expected bfloat16 or float32, as 'central-storage' cannot scale a loss, got float16",
            "use --precision bfloat16",
        )
    if asked.precision == "float16" and chosen is StrategyName.TPU:
        yield "expected bfloat16 or float32 on a TPU, got float16", "use --precision bfloat16"


def _of_parameter_servers(settings: Settings, chosen: StrategyName) -> Iterator[tuple[str, str]]:
    if chosen is not StrategyName.PARAMETER_SERVER:
        if chosen is not StrategyName.NONE or settings.distribution.strategy is StrategyName.AUTO:
            yield from _only_with_parameter_servers(settings, chosen)
        return
    yield from _of_served_workers(settings)
    asked = settings.batches
    if asked.accumulate_gradients > 1:
        yield _without("accumulate_gradients", "parameter servers: use larger batches")
    if asked.scale_learning_rate != "none":
        yield _without(
            "scale_learning_rate", "parameter servers, where an update is made of one batch"
        )
    if asked.batch_size_is != "global":
        yield _without("batch_size_is", "parameter servers, where each worker takes whole batches")


def _of_evaluation(settings: Settings) -> Iterator[tuple[str, str]]:
    parse_best(settings.checkpoints.keep_best)
    if parse_stopping(settings.evaluation.early_stopping) is None:
        return
    if not settings.evaluation.evaluator:
        yield (
            "expected --evaluator with --early-stopping, which goes by what an evaluator finds",
            "give --evaluator too, or use Keras' callback EarlyStopping",
        )
    if settings.distribution.strategy is StrategyName.NONE:
        yield _without("early_stopping", "the strategy 'none', which leaves fit as it is")


def _of_profiling(settings: Settings, chosen: StrategyName) -> Iterator[tuple[str, str]]:
    asked = settings.profiling.profile
    if asked is None:
        return
    parse_steps(asked)
    if chosen is StrategyName.PARAMETER_SERVER:
        yield _without("profile", "parameter servers: no step is one task's alone there")


def _only_with_parameter_servers(
    settings: Settings, chosen: StrategyName
) -> Iterator[tuple[str, str]]:
    usual = Settings().parameter_servers
    for name, value in settings.parameter_servers.model_dump().items():
        if value != getattr(usual, name):
            flag = "--" + name.replace("_", "-")
            yield (
                f"expected the strategy 'parameter-server' for {flag}, got {_shown(chosen)}",
                f"give --ps 1 and --strategy auto, or leave out {flag}",
            )


def _of_served_workers(settings: Settings) -> Iterator[tuple[str, str]]:
    asked, spread = settings.parameter_servers, settings.distribution
    if not asked.ps:
        yield "expected at least one parameter server, got --ps 0", "give --ps 1"
    if asked.max_staleness is not None and asked.backup_workers is not None:
        yield (
            "expected --max-staleness or --backup-workers, got both",
            "synchronous gradients are never stale: leave out --max-staleness",
        )
    if asked.backup_workers is not None and asked.backup_workers >= spread.workers:
        yield (
            f"expected at most {spread.workers - 1} backup workers, got {asked.backup_workers}",
            f"give --backup-workers {spread.workers - 1} or less, or more --workers",
        )
    if spread.devices_per_worker > 1:
        yield _without("devices_per_worker", "parameter servers: give more --workers")
    if spread.launcher == "mpi":
        yield "expected parameter servers without --launcher mpi", "leave out --launcher"
    if settings.numerics.deterministic and asked.backup_workers != 0:
        yield (
            "expected synchronous updates without backup workers for --deterministic",
            "give --backup-workers 0: then the order of updates is fixed",
        )


def _without(option: str, given: str) -> tuple[str, str]:
    flag = "--" + option.replace("_", "-")
    return f"expected no {flag} together with {given}", f"leave out {flag}"


def _shown(chosen: StrategyName) -> str:
    return "one device" if chosen is StrategyName.NONE else f"'{chosen.value}'"


def _one_device(devices: int) -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    if devices > 1:
        # OneDeviceStrategy would keep all variables on the first: here the script places its
        # layers itself.
        return None
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/device:{kind}:0")


def _mirrored(settings: Settings) -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    wanted = settings.distribution.cross_device_ops
    if wanted == "nccl":
        _require_gpus("--cross-device-ops nccl", "use hierarchical or one-device")
    makers = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one-device": tf.distribute.ReductionToOneDevice,
    }
    # Named one by one: left to itself the strategy takes GPUs only where it finds any, and given
    # a GPU that is not there it does not fail but trains on something else.
    return tf.distribute.MirroredStrategy(
        _compute_devices(), cross_device_ops=makers[wanted]() if wanted else None
    )


def _central_storage() -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    return tf.distribute.experimental.CentralStorageStrategy(_compute_devices(), "/device:CPU:0")


def _multi_worker(cluster: Cluster, settings: Settings) -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    from timonel.training.worker import _private  # noqa: PLC0415 - imports TensorFlow

    wanted = settings.distribution.collectives
    if wanted == "nccl":
        _require_gpus("--collectives nccl", "use ring or auto")
    if len(cluster.trainers) > 1:
        _private.configure_coordination(cluster)
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=kinds[wanted.upper()]
        )
    )


def _tpu() -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    from timonel.training.worker import devices  # noqa: PLC0415 - as late as its TensorFlow

    address = devices.tpu_address()
    if address is None:
        raise SpecError(
            "expected a TPU for the strategy 'tpu', found neither /dev/accel0 nor TPU_NAME",
            hint="run on a TPU machine, name one in TPU_NAME, or use --strategy auto",
        )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    if address != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def _compute_devices() -> list[str]:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in found]


def _require_gpus(option: str, otherwise: str) -> None:
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    if not tf.config.list_logical_devices("GPU"):
        raise SpecError(f"expected GPUs for {option}, found none", hint=otherwise)
