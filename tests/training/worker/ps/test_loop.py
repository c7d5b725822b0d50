"""Keras' loop with parameter servers, without them."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.settings import Settings
from timonel.training.worker.ps import tracing
from timonel.training.worker.ps.dispatcher import Dispatcher
from timonel.training.worker.ps.ledger import Ledger
from timonel.training.worker.ps.loop import ParameterServerLoop


def test_the_model_in_training_is_not_compiled_again() -> None:
    settings = Settings.of({"strategy": "parameter-server", "ps": 1, "workers": 2})
    loop = ParameterServerLoop(keras, strategy=None, coordinator=None, settings=settings)
    compiled: list[Any] = []

    def original(model: Any, **_: Any) -> None:
        compiled.append(model)

    one, other = object.__new__(keras.Model), object.__new__(keras.Model)
    loop._training = one
    with pytest.raises(TimonelError, match=r"compile\(\) inside a callback of fit"):
        loop._compile(original, one, {"optimizer": "sgd"})
    loop._compile(original, other, {"optimizer": "sgd"})
    loop._training = None
    loop._compile(original, one, {"optimizer": "sgd"})
    assert compiled == [other, one]


def test_masks_of_a_model_are_told_when_it_is_built(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"strategy": "parameter-server", "ps": 1, "workers": 2, "backup_workers": 0}
    settings = Settings.of(given)
    loop = ParameterServerLoop(keras, strategy=None, coordinator=None, settings=settings)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Embedding(9, 4, mask_zero=True), layers.Dense(3, name="masked")]
    )
    model.compile("sgd", "mse")
    monkeypatch.setattr(tracing, "build", lambda model, _, batch, **__: model(batch))

    def trace(*_: Any, **__: Any) -> None:
        raise StopIteration

    monkeypatch.setattr(tracing, "trace", trace)
    phase = loop._phase(model, Dispatcher(Ledger()), training=True)
    with pytest.raises(StopIteration):
        phase._prepare(tf.ones([2, 5], tf.int32))
    (record,) = caplog.records
    assert record.message.startswith("masked: averages over the part of a batch")
