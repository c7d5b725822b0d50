"""Give the job's strategy to a script that creates one itself.

Scripts written for several workers, such as TensorFlow's tutorials, create a strategy and enter its
scope. The job has already created one, and TensorFlow cannot mix two.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from timonel.errors import SpecError
from timonel.training.settings import StrategyName

_CLASSES: Mapping[StrategyName, tuple[str, ...]] = {
    StrategyName.MULTI_WORKER: (
        "MultiWorkerMirroredStrategy",
        "experimental.MultiWorkerMirroredStrategy",
    ),
    StrategyName.MIRRORED: ("MirroredStrategy",),
    StrategyName.PARAMETER_SERVER: (
        "ParameterServerStrategy",
        "experimental.ParameterServerStrategy",
    ),
    StrategyName.CENTRAL_STORAGE: ("experimental.CentralStorageStrategy",),
    StrategyName.ONE_DEVICE: ("OneDeviceStrategy",),
    StrategyName.TPU: ("TPUStrategy", "experimental.TPUStrategy"),
}
"""Names in `tf.distribute`."""


def adopt(strategy: Any, name: StrategyName) -> None:
    """Make constructors of `tf.distribute` return the job's strategy, permanently.

    Constructing another kind of strategy raises a SpecError from then on.

    Args:
        strategy: The job's ``tf.distribute.Strategy``.
        name: Its kind.
    """
    import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

    def find(path: str) -> Any:
        return operator.attrgetter(path)(tf.distribute)

    own = {find(path) for path in _CLASSES[name]}
    # MultiWorkerMirroredStrategy's real name is CollectiveAllReduceStrategy.
    paths = [path for found in _CLASSES.values() for path in found]
    # One class may have two names: the shorter one is shown.
    names = {find(path): path for path in sorted(paths, key=len, reverse=True)}

    def create(cls: type, *_args: Any, **_kwargs: Any) -> Any:
        if cls in own:
            return strategy
        raise SpecError(
            f"The script creates a tf.distribute.{names[cls]}, but this job trains with the "
            f"strategy '{name.value}'. Remove it from the script, or let the script distribute "
            "itself with --strategy none."
        )

    for cls in names:
        cls.__new__ = create
    _skip_reinit(strategy)


def _skip_reinit(strategy: Any) -> None:
    """Skip the second ``__init__`` after `create` returns the strategy."""
    cls = type(strategy)
    original = cls.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if self is not strategy:
            original(self, *args, **kwargs)

    cls.__init__ = initialize
