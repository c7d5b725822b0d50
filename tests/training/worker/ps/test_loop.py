"""Keras' loop with parameter servers, without them."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from timonel.errors import TimonelError
from timonel.training.settings import Settings
from timonel.training.worker.ps.loop import ParameterServerLoop


def test_the_model_in_training_is_not_compiled_again() -> None:
    settings = Settings.of({"strategy": "parameter-server", "ps": 1, "workers": 2})
    loop = ParameterServerLoop(keras, None, None, settings, workers=2)
    compiled: list[Any] = []

    def compile_model(model: Any) -> None:
        loop._compile(lambda **_: compiled.append(model), model, {"optimizer": "sgd"})

    one, other = object.__new__(keras.Model), object.__new__(keras.Model)
    loop._training = one
    with pytest.raises(TimonelError, match=r"compile\(\) inside a callback of fit"):
        compile_model(one)
    compile_model(other)
    loop._training = None
    compile_model(one)
    assert compiled == [other, one]
