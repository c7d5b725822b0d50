"""A callback that compiles the model: what a resume cannot repeat is refused."""

from __future__ import annotations

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


class Compiles(keras.callbacks.Callback):  # type: ignore[misc] # no types
    def __init__(self, kill_at: int | None) -> None:
        super().__init__()
        self._kill_at = lambda: kill_at  # a number would be restored

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._kill_at():
            raise KilledError
        if epoch == 1:
            self.model.compile("sgd", "mae")
            self.model.make_train_function()


@pytest.mark.parametrize(("kill_at", "is_refused"), [(1, False), (2, True), (None, False)])
def test_a_resume_after_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int | None, is_refused: bool
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
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            x = np.ones((8, 1), np.float32)
            try:
                return model.fit(x, x, epochs=3, verbose=0, callbacks=[Compiles(kill_at)])
            finally:
                checkpoints.drain()

    if kill_at is not None:
        with pytest.raises(KilledError):
            run(kill_at)
    if is_refused:
        with pytest.raises(TimonelError, match="a callback has compiled the model"):
            run(None)
    else:
        assert len(run(None).epoch) == 3
