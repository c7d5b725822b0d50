"""A callback that compiles the model or freezes layers: a resume cannot repeat it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from timonel.errors import TimonelError
from timonel.training.settings import CheckpointPolicy
from timonel.training.worker.context import context
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.fit.services import Services

pytestmark = pytest.mark.slow


class KilledError(BaseException):
    """Stands for the end of the process."""


def compiles(model: Any) -> None:
    model.compile("sgd", "mae")
    model.make_train_function()


def freezes(model: Any) -> None:
    model.layers[0].trainable = False


def swaps(model: Any) -> None:
    first, second = model.layers[:2]
    first.trainable, second.trainable = second.trainable, first.trainable


class Changes(keras.callbacks.Callback):  # type: ignore[misc] # no types
    def __init__(self, kill_at: int | None, at: int, change: Callable[[Any], None]) -> None:
        super().__init__()
        self._kill_at = lambda: kill_at  # a number would be restored
        self._at, self._change = at, change

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._kill_at():
            raise KilledError
        if epoch == self._at:
            self._change(self.model)


@pytest.mark.parametrize(
    ("change", "at", "kill_at", "is_refused"),
    [
        (compiles, 1, 1, False),
        *((each, 1, 1, True) for each in (freezes, swaps)),  # the new process traces the step later
        *((each, 1, 2, True) for each in (compiles, freezes, swaps)),
        *((each, 0, 1, True) for each in (freezes, swaps)),
        (swaps, 1, None, False),
        (compiles, 1, None, False),
    ],
)
def test_a_resume_after_it_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], None],
    at: int,
    kill_at: int | None,
    is_refused: bool,
) -> None:
    monkeypatch.setattr(keras.Model, "fit", keras.Model.fit)

    def run(kill_at: int | None) -> Any:
        keras.backend.clear_session()
        checkpoints = Checkpoints(
            tmp_path, writes=True, progress=tmp_path / "p", policy=CheckpointPolicy()
        )
        services = Services(keras, context().cluster, checkpoints, tmp_path)
        with monkeypatch.context() as patch, services.variables.watched():
            patch.setattr(keras.Model, "fit", keras.Model.fit)
            Fits(services).install()
            layers = [keras.layers.Dense(1) for _ in range(3)]
            model = keras.Sequential([keras.Input((1,)), *layers])
            layers[1].trainable = False
            model.compile("sgd", "mse")
            x = np.ones((8, 1), np.float32)
            try:
                return model.fit(
                    x, x, epochs=3, verbose=0, callbacks=[Changes(kill_at, at, change)]
                )
            finally:
                checkpoints.drain()

    if kill_at is not None:
        with pytest.raises(KilledError):
            run(kill_at)
    if is_refused:
        with pytest.raises(TimonelError, match=r"cannot resume: a callback has \w+ed \w+"):
            run(None)
    else:
        assert len(run(None).epoch) == 3
