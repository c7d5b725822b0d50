"""Models of Keras 3, rebuilt in tf-keras with their weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from timonel.errors import ModelError
from timonel.models.architecture import read_architecture, write_architecture


def rebuilt(modules: SimpleNamespace, model: Any, folder: Path) -> Any:
    variables = [each.value for each in model.variables]
    write_architecture(folder, model, "keras", variables)
    return modules.rebuild(read_architecture(folder), variables)


def sequential() -> Any:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.RandomFlip("horizontal"),
            layers.Rescaling(2.0, offset=-1.0),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(synchronized=True),
            layers.LeakyReLU(negative_slope=0.3),
            layers.SeparableConv2D(4, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(3, activation="softmax", kernel_regularizer="l2"),
        ]
    )


def nested() -> Any:
    pixels = keras.Input((8, 8, 3))
    hidden = layers.Conv2D(4, 3, padding="same")(pixels)
    base = keras.Model(pixels, layers.Add()([hidden, layers.ReLU(max_value=6)(hidden)]))
    inputs = keras.Input((8, 8, 3))
    both = layers.Concatenate()([base(inputs, training=False), inputs])
    outputs = layers.Dense(2)(layers.GlobalAveragePooling2D()(both))
    return keras.Model(inputs, outputs)


def two_inputs() -> Any:
    given = [keras.Input((5,)), keras.Input((5,))]
    return keras.Model(given, layers.Dense(1)(layers.Multiply()(given)))


@pytest.mark.parametrize("build", [sequential, nested, two_inputs])
def test_a_rebuilt_model_computes_the_same(
    modules: SimpleNamespace, build: Callable[[], Any], tmp_path: Path
) -> None:
    keras.utils.set_random_seed(0)
    model = build()
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.set_weights([np.random.default_rng(1).random(4) for _ in range(4)])
    generator = np.random.default_rng(0)
    inputs = [generator.random((6, *each.shape[1:])).astype(np.float32) for each in model.inputs]
    given = inputs if len(inputs) > 1 else inputs[0]
    found = rebuilt(modules, model, tmp_path)(given, training=False).numpy()
    np.testing.assert_allclose(found, np.asarray(model(given, training=False)), atol=1e-5)


def shared() -> Any:
    inputs = keras.Input((4,))
    dense = layers.Dense(4)
    return keras.Model(inputs, dense(dense(inputs)))


def operator() -> Any:
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(1)(inputs * 2.0))


def same_names() -> Any:
    pixels = keras.Input((4,))
    base = keras.Model(pixels, layers.Dense(4, name="dense")(pixels))
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(4, name="dense")(base(inputs)))


def by_name() -> Any:
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(list(inputs.values()))))


def attention() -> Any:
    inputs = keras.Input((6, 4))
    return keras.Model(inputs, layers.MultiHeadAttention(2, 4)(inputs, inputs))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (by_name, "tensors by name: a, b"),
        (attention, "'multi_head.*' cannot be trained"),
        (shared, "called several times"),
        (operator, "'multiply.*' cannot be trained"),
        (same_names, "cannot build the model"),
        (lambda: keras.Sequential([keras.Input((4,)), layers.RMSNormalization()]), "no layer RMS"),
        (
            lambda: keras.Sequential([keras.Input((4,)), layers.Dense(2, activation="squareplus")]),
            "'dense.*' cannot be",
        ),
    ],
)
def test_what_tf_keras_cannot_express_is_named(
    modules: SimpleNamespace, build: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        rebuilt(modules, build(), tmp_path)


def test_a_subclassed_model_has_no_architecture(tmp_path: Path) -> None:
    class Own(keras.Model):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs

    write_architecture(tmp_path, Own(), "keras", [])
    with pytest.raises(ModelError, match="layers of the model are unknown"):
        read_architecture(tmp_path)


@pytest.mark.slow
def test_ranges_come_from_the_data(modules: SimpleNamespace, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, activation="relu"), layers.Dense(2)]
    )
    model.layers[0].set_weights([np.eye(8) * 50, np.zeros(8)])
    made, floats = modules.quantized(rebuilt(modules, model, tmp_path))
    assert floats == []
    generator = np.random.default_rng(0)
    batches = [generator.random((64, 8)).astype(np.float32) for _ in range(10)]
    modules.calibrate(made, batches)
    ranges = {each.name: float(each) for each in made.variables if "activation_m" in each.name}
    assert any(abs(value - 50) < 1 for value in ranges.values())
    expected = np.asarray(model(batches[0]))
    found = made(batches[0], training=False).numpy()
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_normalization_after_an_activation_stays_in_float(
    modules: SimpleNamespace, tmp_path: Path
) -> None:
    pixels = keras.Input((8, 8, 1))
    hidden = layers.Conv2D(4, 3, activation="relu")(pixels)
    first = layers.BatchNormalization()(hidden)
    twice = layers.Conv2D(4, 3, padding="same")(first)
    second = layers.BatchNormalization()(twice)
    model = keras.Model(pixels, layers.Add()([twice, second]))
    made, floats = modules.quantized(rebuilt(modules, model, tmp_path))
    assert floats == [model.layers[2].name, model.layers[4].name]
    batch = np.random.default_rng(0).random((16, 8, 8, 1)).astype(np.float32)
    modules.calibrate(made, [batch])
    expected = np.asarray(model(batch, training=False))
    found = made(batch, training=False).numpy()
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_a_model_of_tf_keras_keeps_its_loss(modules: SimpleNamespace, tmp_path: Path) -> None:
    from tf_keras import Input, Sequential
    from tf_keras.layers import Dense

    model = Sequential([Input((3,)), Dense(2)])
    model.compile(loss="mse")
    write_architecture(tmp_path, model, "tf_keras", model.variables)
    architecture = read_architecture(tmp_path)
    assert architecture.config["compile_config"]["loss"] == "mse"
    inputs = np.ones((1, 3), np.float32)
    found = modules.rebuild(architecture, model.variables)(inputs)
    np.testing.assert_allclose(found, model(inputs))


def test_an_architecture_that_names_functions_is_refused(
    modules: SimpleNamespace, tmp_path: Path
) -> None:
    from tf_keras import Input, Sequential
    from tf_keras.layers import Dense

    model = Sequential([Input((3,)), Dense(2)])
    write_architecture(tmp_path, model, "tf_keras", model.variables)
    architecture = read_architecture(tmp_path)
    initializer = {"module": "os", "class_name": "mkdir", "config": str(tmp_path / "ran")}
    architecture.config["config"]["layers"][1]["config"]["kernel_initializer"] = initializer
    with pytest.raises(ModelError, match="would call mkdir of the module os"):
        modules.rebuild(architecture, model.variables)


def test_layers_without_integers_stay_in_float(modules: SimpleNamespace, tmp_path: Path) -> None:
    model = keras.Sequential(
        [
            keras.Input((6, 4)),
            layers.LayerNormalization(),
            layers.Rescaling(2.0),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    made, floats = modules.quantized(rebuilt(modules, model, tmp_path))
    assert floats == [model.layers[0].name]
    rescaling = next(each for each in made.layers if "rescaling" in each.name)
    assert {each.name.rpartition("/")[2] for each in rescaling.weights} >= {
        "output_min:0",
        "output_max:0",
    }, "a layer without weights passes on integers"
    separable = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.SeparableConv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
        ]
    )
    _, floats = modules.quantized(rebuilt(modules, separable, tmp_path))
    assert floats == []
    alone = keras.Sequential([keras.Input((6, 4)), layers.LayerNormalization()])
    with pytest.raises(ModelError, match="no layer can be trained"):
        modules.quantized(rebuilt(modules, alone, tmp_path))
