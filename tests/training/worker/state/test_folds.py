"""A script that fits one model after another, killed at an epoch's end of a later one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from timonel.training.settings import CheckpointPolicy
from timonel.training.worker.context import context
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.fit.managed_fit import Fits
from timonel.training.worker.fit.services import Services

pytestmark = pytest.mark.slow


class KilledError(BaseException):
    """Stands for the end of the process."""


class Kills(keras.callbacks.Callback):  # type: ignore[misc] # no types
    def __init__(self, *, does: bool) -> None:
        super().__init__()
        self._does = lambda: does  # a bool would be restored

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2 and self._does():
            raise KilledError


def test_no_state_is_missed_that_an_epoch_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)

    def run(*, is_killed: bool) -> list[dict[str, list[float]]]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(4)
        checkpoints = Checkpoints(
            tmp_path, writes=True, progress=tmp_path / "p", policy=CheckpointPolicy()
        )
        services = Services(keras, context().cluster, checkpoints, tmp_path)
        with monkeypatch.context() as patch, services.variables.watched():
            patch.setattr(keras.Model, "fit", keras.Model.fit)
            Fits(services).install()
            histories = []
            for fold in range(2):
                model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
                model.compile("sgd", "mse", metrics=["mae"])
                own, others = x[fold::2], x[1 - fold :: 2]
                try:
                    found = model.fit(
                        own,
                        own[:, 0],
                        validation_data=(others, others[:, 0]),
                        epochs=4,
                        verbose=0,
                        callbacks=[Kills(does=is_killed and fold == 1)],
                    )
                finally:
                    checkpoints.drain()
                histories.append(found.history)
            return histories

    with pytest.raises(KilledError):
        run(is_killed=True)
    with caplog.at_level(logging.WARNING):
        resumed = run(is_killed=False)
    assert "not restored" not in caplog.text
    assert [len(each["mae"]) for each in resumed] == [4, 4]
