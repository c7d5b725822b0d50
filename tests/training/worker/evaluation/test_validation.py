"""What validation is, and who does it, for both Kerases."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from timonel.training.worker.evaluation.trainers import NEVER, evaluation_of, who_validates

X, Y = np.arange(40.0).reshape(10, 4), np.arange(10.0)


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


def test_arguments_without_validation_data() -> None:
    assert evaluation_of({"x": X, "y": Y}) is None
    assert evaluation_of({"x": X, "y": Y, "validation_split": 0.0}) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((X, Y), (X, Y, None)),
        ([X, Y, Y], (X, Y, Y)),
        ((X,), (X, None, None)),
        ("dataset", ("dataset", None, None)),
    ],
)
def test_forms_of_validation_data(data: Any, expected: tuple[Any, ...]) -> None:
    found = evaluation_of({"validation_data": data, "batch_size": 8, "validation_steps": 3})
    assert found is not None
    assert (found["x"], found["y"], found["sample_weight"]) == expected
    assert (found["batch_size"], found["steps"]) == (8, 3)


def test_validation_has_its_own_batch_size() -> None:
    given = {"validation_data": (X, Y), "batch_size": 8, "validation_batch_size": 2}
    found = evaluation_of(given)
    assert found is not None
    assert found["batch_size"] == 2


@pytest.mark.parametrize("share", [0.1, 0.33])
def test_a_split_takes_the_rows_that_keras_takes(keras: Any, share: float) -> None:
    class Seen(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[int] = []
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def test_step(self, data: Any) -> Any:
            x, *_ = data
            self.rows += [int(row[0]) // 4 for row in x.numpy()]
            return {"loss": 0.0}

    model = Seen()
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    model.fit(X, Y, validation_split=share, verbose=0)
    found = evaluation_of({"x": X, "y": Y, "validation_split": share})
    assert found is not None
    assert [int(row[0]) // 4 for row in found["x"]] == model.rows
    assert list(found["y"]) == model.rows
    model.rows = []
    model.fit(X, Y, validation_split=share, verbose=0, validation_freq=NEVER)
    assert model.rows == []  # left to the evaluator, and still not trained on


@pytest.mark.parametrize(
    ("make", "is_needed"),
    [
        (lambda k: None, False),
        (lambda k: [], False),
        (lambda k: k.callbacks.EarlyStopping(), True),
        (lambda k: k.callbacks.EarlyStopping(monitor="loss"), False),
        (lambda k: [k.callbacks.ReduceLROnPlateau(monitor="val_accuracy")], True),
        (lambda k: [k.callbacks.CSVLogger("x.csv"), k.callbacks.TerminateOnNaN()], False),
        (lambda k: [k.callbacks.ModelCheckpoint("a.weights.h5", save_weights_only=True)], False),
        (lambda k: [k.callbacks.ModelCheckpoint("a.keras", save_best_only=True)], True),
        (
            lambda k: [k.callbacks.ModelCheckpoint("a.keras", monitor="loss", save_best_only=True)],
            False,
        ),
        (lambda k: [k.callbacks.ModelCheckpoint("{epoch}-{val_loss:.2f}.keras")], True),
        (lambda k: [k.callbacks.LambdaCallback()], True),
        (lambda k: k.callbacks.CallbackList([k.callbacks.EarlyStopping()]), True),
        (lambda k: [type("Mine", (k.callbacks.Callback,), {"__module__": "__main__"})()], True),
    ],
)
def test_who_may_look_at_the_results(keras: Any, make: Any, is_needed: bool) -> None:
    assert (who_validates(keras, make(keras)) is not None) == is_needed
