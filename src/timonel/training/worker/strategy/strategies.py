"""Choose and build a task's distribution strategy, also for scripts that create one."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.cluster import Cluster
from timonel.training.settings import Settings
from timonel.training.train_options import Strategy
from timonel.training.worker import peers
from timonel.training.worker.private import keras_fit
from timonel.training.worker.strategy import devices


def build(name: Strategy, cluster: Cluster, settings: Settings) -> Any:
    """Build a strategy; blocks until all workers have joined. None: one replica without a strategy.

    TensorFlow must be configured but not initialized.
    """
    if name == "one-device":
        return _one_device(settings.distribution.devices_per_worker)
    if name == "mirrored":
        return _mirrored(settings)
    if name == "central-storage":
        return tf.distribute.experimental.CentralStorageStrategy(
            _compute_devices(), "/device:CPU:0"
        )
    if name == "multi-worker":
        return _multi_worker(cluster, settings)
    if name == "parameter-server":
        from timonel.training.worker.ps import roles  # noqa: PLC0415 - imports TensorFlow

        return roles.strategy_for(cluster)
    return _tpu() if name == "tpu" else None


def _one_device(devices: int) -> Any:
    if devices > 1:
        # OneDeviceStrategy would keep all variables on the first device; with several, the script
        # places its layers itself.
        return None
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return tf.distribute.OneDeviceStrategy(f"/device:{kind}:0")


def _mirrored(settings: Settings) -> Any:
    wanted = settings.distribution.cross_device_ops
    if wanted == "nccl":
        _require_gpus("--cross-device-ops nccl", "use hierarchical or one-device")
    makers = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one-device": tf.distribute.ReductionToOneDevice,
    }
    # Devices are listed explicitly: by default the strategy uses GPUs if it finds any, and with a
    # missing GPU it does not fail but trains on other devices.
    return tf.distribute.MirroredStrategy(
        _compute_devices(), cross_device_ops=makers[wanted]() if wanted else None
    )


def _multi_worker(cluster: Cluster, settings: Settings) -> Any:
    wanted = settings.distribution.collectives
    if wanted == "nccl":
        _require_gpus("--collectives nccl", "use ring or auto")
    if len(cluster.trainers) > 1:
        keras_fit.configure_coordination(cluster)
    if not cluster.is_chief:
        peers.await_leader(cluster.trainers[0])
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=kinds[wanted.upper()]
        )
    )


def _tpu() -> Any:
    address = devices.tpu_address()
    if address is None:
        raise SpecError(
            "the strategy 'tpu' found no TPU: neither /dev/accel0 nor TPU_NAME exists",
            hint="run on a TPU machine, set TPU_NAME, or use --strategy auto",
        )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    if address != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def _compute_devices() -> list[str]:
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in found]


def _require_gpus(option: str, otherwise: str) -> None:
    if not tf.config.list_logical_devices("GPU"):
        raise SpecError(f"{option} needs GPUs, but this machine has none", hint=otherwise)


_CLASSES: Mapping[str, tuple[str, ...]] = {
    "multi-worker": ("MultiWorkerMirroredStrategy", "experimental.MultiWorkerMirroredStrategy"),
    "mirrored": ("MirroredStrategy",),
    "parameter-server": ("ParameterServerStrategy", "experimental.ParameterServerStrategy"),
    "central-storage": ("experimental.CentralStorageStrategy",),
    "one-device": ("OneDeviceStrategy",),
    "tpu": ("TPUStrategy", "experimental.TPUStrategy"),
}
"""Names in `tf.distribute`."""


def adopt(strategy: Any, name: Strategy) -> None:
    """Make constructors of `tf.distribute` return the job's strategy, permanently."""

    # Scripts written for several workers, such as TensorFlow's tutorials, create a strategy and
    # enter its scope. The job has already created one, and TensorFlow cannot mix two: constructing
    # another kind of strategy raises a SpecError from then on.
    def find(path: str) -> Any:
        return operator.attrgetter(path)(tf.distribute)

    own = {find(path) for path in _CLASSES[name]}
    # MultiWorkerMirroredStrategy's real name is CollectiveAllReduceStrategy.
    paths = [path for found in _CLASSES.values() for path in found]
    # One class may have two names: the shorter one is shown.
    names = {find(path): path for path in sorted(paths, key=len, reverse=True)}
    by_class = {find(path): kind for kind, found in _CLASSES.items() for path in found}

    def create(cls: type, *_args: Any, **_kwargs: Any) -> Any:
        if cls in own:
            return strategy
        option = _OPTIONS.get(by_class[cls], f"--strategy {by_class[cls]}")
        raise SpecError(
            f"The script creates a tf.distribute.{names[cls]}, but this job trains with the "
            f"strategy '{name}'",
            hint=f"train with {option}, which gives the script its strategy, or remove it from the "
            "script",
        )

    for cls in names:
        cls.__new__ = create
    _skip_reinit(strategy)


def check_own(environ: Mapping[str, str]) -> None:
    """Check strategies that a script creates in a job without one, permanently.

    From then on, the constructors raise a SpecError for what this task lacks: the other tasks of a
    cluster, which the script would wait for, and GPUs, without which it would hang. The script may
    set ``TF_CONFIG`` in ``environ``.
    """

    def check(kind: str, devices: Any) -> None:
        if kind == "mirrored":
            _require_devices(devices or ())
        elif (size := _size_of(environ.get("TF_CONFIG", ""))) > 1:
            raise SpecError(
                f"The script creates a strategy for the {size} tasks of its TF_CONFIG, but this "
                "job has one",
                hint=f"train with {_OPTIONS[kind]}, or start each task with --cluster",
            )

    def checking(kind: str) -> Any:
        def create(cls: type, devices: Any = None, *_args: Any, **_kwargs: Any) -> Any:
            check(kind, devices)
            return object.__new__(cls)

        return create

    for kind in ("mirrored", "multi-worker", "parameter-server"):
        for path in _CLASSES[kind]:
            operator.attrgetter(path)(tf.distribute).__new__ = checking(kind)


def _require_devices(devices: Any) -> None:
    count = len(tf.config.list_physical_devices("GPU"))
    for device in map(str, devices):
        spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
        if spec.device_type == "GPU" and (spec.device_index or 0) >= count:
            raise SpecError(
                f"The script creates a MirroredStrategy on {device}, but this task has {count} "
                "GPUs",
                hint="create it without devices, and train with --devices-per-worker N",
            )


def _size_of(tf_config: str) -> int:
    try:
        return sum(map(len, json.loads(tf_config)["cluster"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 1


_OPTIONS = {
    "mirrored": "--devices-per-worker 2 instead of --workers",
    "multi-worker": "--workers 2",
    "parameter-server": "--workers 2 --ps 1",
}


def _skip_reinit(strategy: Any) -> None:
    """Skip the second ``__init__`` after `create` returns the strategy."""
    cls = type(strategy)
    original = cls.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if self is not strategy:
            original(self, *args, **kwargs)

    cls.__init__ = initialize
