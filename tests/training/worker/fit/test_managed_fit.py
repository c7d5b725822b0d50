"""Calls of ``fit`` in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras

from timonel.training.settings import Settings
from timonel.training.worker.fit.managed_fit import FitCall, Fits
from timonel.training.worker.state.checkpoint_format import Progress


def test_the_reported_learning_rate_is_that_of_the_present_optimizer(tmp_path: Path) -> None:
    services: Any = SimpleNamespace(
        keras=keras,
        tensorboard_dir=tmp_path,
        strategy=None,
        workers=1,
        replicas=1,
        settings=Settings.of({}),
        run=object(),
    )
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    reporter = Fits(services).reporter(FitCall(0, model, {}, Progress(), None), None)
    assert reporter is not None
    assert reporter.learning_rate() == 0.5
    model.compile(keras.optimizers.SGD(0.25), "mse")  # in a callback
    assert reporter.learning_rate() == 0.25
