"""Capture and restore the state of a ``fit`` call.

Kernels of TensorFlow's old random operations (such as ``tf.random.uniform`` inside a
``tf.function`` or a ``Dataset.map``) have state that cannot be read: it is not restored.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from timonel.training.worker.inputs import building
from timonel.training.worker.private import gradient_sums, hidden_state
from timonel.training.worker.state import callback_state
from timonel.training.worker.state.checkpoint_format import FitState, Progress
from timonel.training.worker.state.data_position import Feed
from timonel.training.worker.state.variables import Array, Replicas
from timonel.training.worker.state.variables import restore as assign

logger = logging.getLogger(__name__)


def capture_random_state() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and TensorFlow's generators."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, np.array(keys), int(position), int(has_gauss), float(cached)),
        "tensorflow": hidden_state.op_seed_state(),
        "tf_keras": hidden_state.tf_keras_seed_state(),
    }


def restore_random_state(saved: Mapping[str, Any]) -> None:
    """Restore the state from `capture_random_state`."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    hidden_state.set_op_seed_state(saved["tensorflow"])
    hidden_state.set_tf_keras_seed_state(saved["tf_keras"])


class Snapshot:
    """State of a ``fit`` call.

    All tasks of a job capture and restore it at the same steps.

    Args:
        model: Built model.
        callbacks: Callbacks of the call, without timonel's own.
        replicas: Replicas that hold the variables.
        feed: Training data.
    """

    def __init__(
        self, model: Any, callbacks: Sequence[Any], replicas: Replicas, feed: Feed
    ) -> None:
        self._model = model
        self._callbacks = callbacks
        self._replicas = replicas
        self._feed = feed
        self._held: list[Array] | None = None

    def take(self, progress: Progress, trained: int) -> FitState:
        """Return the state after ``trained`` steps, copied to host memory."""
        names, local = local_variables(self._model, create=False)
        metrics = hidden_state.metric_variables(self._model) if progress.step else []
        values = self._replicas.read([*local, *metrics])
        extra: dict[str, Any] = {"trained": trained, "named_variables": names}
        if not progress.finished:
            extra["callbacks"] = callback_state.capture(self._callbacks)
            extra["random"] = capture_random_state()
            extra["data"] = self._feed.position(trained)
        return FitState(
            progress,
            self._replicas.read_first(building.variables(self._model)),
            values[: len(local)],
            self._held if self._held is not None and metrics else values[len(local) :],
            extra,
        )

    def restore(self, state: FitState) -> None:
        """Restore everything except the epoch's metrics.

        Raises:
            TimonelError: The model differs from the saved one.
        """
        restore_model(self._model, state, self._replicas)
        hidden_state.count_steps(self._model, int(state.extra.get("trained", 0)))
        others = self.restore_callbacks(state)
        if others:
            logger.warning(
                "Callbacks differ from those before the restart and start fresh: %s",
                ", ".join(others),
            )
        if "random" in state.extra:
            restore_random_state(state.extra["random"])

    def restore_callbacks(self, state: FitState) -> list[str]:
        """Restore the callbacks' state; return the classes of callbacks that changed."""
        return callback_state.restore(self._callbacks, state.extra.get("callbacks", ()))

    def hold_metrics(self) -> None:
        """Keep the epoch's current metrics: validation uses the same variables."""
        self._held = self._replicas.read(hidden_state.metric_variables(self._model))

    def release_metrics(self) -> None:
        """Drop the kept metrics as another epoch begins."""
        self._held = None

    def restore_metrics(self, state: FitState) -> None:
        """Restore the metrics of an interrupted epoch."""
        found = hidden_state.metric_variables(self._model)
        if len(found) != len(state.metrics):
            logger.warning(
                "Metrics differ from those before the restart. The epoch's metrics start fresh."
            )
            return
        self._replicas.assign(found, state.metrics, sums=True)


def restore_model(model: Any, state: FitState, replicas: Replicas) -> None:
    """Restore the variables of the model and its optimizer.

    Raises:
        TimonelError: The model differs from the saved one.
    """
    assign(building.variables(model), state.variables)
    wanted = state.extra.get("named_variables", [])
    names, local = local_variables(model, create="keras" in wanted)
    saved = dict(
        zip([*_numbers(len(state.local) - len(wanted)), *wanted], state.local, strict=True)
    )
    here = dict(zip([*_numbers(len(local) - len(names)), *names], local, strict=True))
    both = [name for name in here if name in saved]
    for sums in (True, False):
        names = [name for name in both if name.startswith(gradient_sums.PREFIX) is sums]
        replicas.assign([here[name] for name in names], [saved[name] for name in names], sums=sums)


def local_variables(model: Any, *, create: bool) -> tuple[list[str], list[Any]]:
    """Return names, and variables that each replica updates: first unnamed, then named."""
    named = {
        **dict(hidden_state.random_variables(model, create=create)),
        **dict(hidden_state.schedule_variables(model)),
        **dict(gradient_sums.named_sums(getattr(model, "optimizer", None))),
    }
    return list(named), [*model.non_trainable_variables, *named.values()]


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]
