"""Which layers of a live model may mix rows."""

from __future__ import annotations

import functools
import importlib

import pytest

from timonel.models import row_wise
from timonel.models.row_wise import layers_that_may_mix

PACKAGES = ("keras", "tf_keras")


@pytest.fixture(params=PACKAGES)
def keras(request):
    return importlib.import_module(request.param)


def built(keras, *layers, shape=(8,), dtype="float32"):
    """A functional model that is a chain of layers."""
    x = inputs = keras.Input(shape, dtype=dtype, name="x")
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def test_common_models_compute_each_row_from_itself(keras):
    layers = keras.layers
    image = built(
        keras,
        layers.Rescaling(1 / 255),
        layers.RandomFlip(),
        layers.Conv2D(4, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.DepthwiseConv2D(3),
        layers.ReLU(6.0),
        layers.MaxPooling2D(),
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.5),
        layers.Dense(3, activation="softmax"),
        shape=(16, 16, 3),
    )
    text = built(
        keras,
        layers.TextVectorization(max_tokens=9, output_sequence_length=5),
        layers.Embedding(9, 4),
        layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        layers.TimeDistributed(layers.Dense(2, activation=keras.activations.tanh)),
        layers.Flatten(),
        layers.Dense(1, activation=layers.LeakyReLU()),
        shape=(),
        dtype="string",
    )
    inside = keras.Sequential([keras.Input((8,)), layers.Dense(8), layers.LayerNormalization()])
    nested = built(keras, inside, layers.Softmax())
    for model in (image, text, nested):
        assert layers_that_may_mix(model) == ()


def test_several_inputs_are_merged_by_row(keras):
    layers = keras.layers
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    joined = layers.Concatenate()([layers.Add()([a, b]), layers.Dot(axes=1)([a, b])])
    seen = layers.MultiHeadAttention(2, 4)(
        layers.Reshape((5, 1))(joined), layers.Reshape((5, 1))(joined)
    )
    assert layers_that_may_mix(keras.Model([a, b], layers.Flatten()(seen))) == ()


def test_applications_compute_each_row_from_itself(keras):
    for make in ("MobileNetV2", "MobileNetV3Small", "ResNet50V2"):
        model = getattr(keras.applications, make)(weights=None, input_shape=(64, 64, 3))
        found = layers_that_may_mix(model)
        # The bare operations of tf-keras are layers of a kind that may be anything.
        if make == "MobileNetV3Small" and keras.__name__ == "tf_keras":
            assert found
        else:
            assert found == (), make


@pytest.mark.parametrize(
    "make",
    [
        lambda layers: layers.Lambda(lambda x: x, name="odd"),
        lambda layers: layers.Dense(8, activation=lambda x: x, name="odd"),
        lambda layers: layers.Softmax(axis=0, name="odd"),
        lambda layers: layers.Softmax(axis=-2, name="odd"),
        lambda layers: layers.Concatenate(axis=0, name="odd"),
        lambda layers: layers.EinsumDense("ab,bc->ac", 8, name="odd"),
    ],
    ids=["lambda", "own activation", "axis", "negative axis", "concatenate", "einsum"],
)
def test_layers_that_are_not_known_are_named(keras, make):
    layer = make(keras.layers)
    several = type(layer).__name__ == "Concatenate"
    inputs = keras.Input((8,), name="x")
    model = keras.Model(inputs, layer([inputs, inputs] if several else inputs))
    (found,) = layers_that_may_mix(model)
    assert found.endswith(" 'odd'")


def test_attention_over_the_batch_is_named(keras):
    inputs = keras.Input((8,))
    for kind in ("Attention", "AdditiveAttention"):
        layer = getattr(keras.layers, kind)(name="odd")
        assert layers_that_may_mix(keras.Model(inputs, layer([inputs, inputs]))) == (
            f"{kind} 'odd'",
        )


def test_each_layer_that_needs_a_rank_has_one():
    assert row_wise._LEAST_RANK["MultiHeadAttention"] == 3
    for kind in row_wise._WITH_AXES:
        assert row_wise._LEAST_RANK[kind] >= 2


@pytest.mark.parametrize("kind", ["Softmax", "UnitNormalization"])
def test_layers_of_a_single_axis_are_named(keras, kind):
    try:
        model = built(keras, getattr(keras.layers, kind)(name="odd"), shape=())
    except ValueError:
        pytest.skip("tf-keras refuses it")
    assert layers_that_may_mix(model) == (f"{kind} 'odd'",)


def test_a_missing_axis_is_all_of_them(keras):
    model = built(keras, keras.layers.Softmax(axis=None, name="odd"))
    assert layers_that_may_mix(model) == ("Softmax 'odd'",)


def test_time_as_the_first_axis_is_named():
    keras = importlib.import_module("tf_keras")
    for layer in (
        keras.layers.LSTM(2, time_major=True, name="odd"),
        keras.layers.Bidirectional(keras.layers.GRU(2, time_major=True), name="odd"),
    ):
        assert layers_that_may_mix(built(keras, layer, shape=(3, 2)))


def test_training_fixed_in_the_graph_is_named():
    keras = importlib.import_module("tf_keras")
    inputs = keras.Input((4,), name="x")
    model = keras.Model(inputs, keras.layers.BatchNormalization()(inputs, training=True), name="m")
    (found,) = layers_that_may_mix(model)
    assert "'m', which calls a layer with training=True" in found


def test_patched_calls_and_wrapped_activations_are_named(keras):
    patched = keras.layers.Dense(2, name="patched")
    patched.call = lambda x: x[::-1]
    wrapped = functools.wraps(keras.activations.relu)(lambda x: x)
    model = built(
        keras, patched, keras.layers.Dense(2, activation=wrapped, name="wrapped"), shape=(2,)
    )
    assert {each.partition(" ")[2] for each in layers_that_may_mix(model)} >= {
        "'patched'",
        "'wrapped'",
    }


def test_texts_padded_to_the_longest_of_the_batch_mix(keras):
    for options in ({}, {"standardize": lambda x: x, "output_sequence_length": 4}):
        vectors = keras.layers.TextVectorization(max_tokens=9, name="words", **options)
        model = built(keras, vectors, shape=(), dtype="string")
        assert layers_that_may_mix(model) == ("TextVectorization 'words'",)


def test_state_between_batches_mixes(keras):
    inputs = keras.Input(batch_shape=(1, 4, 2))
    for layer in (
        keras.layers.GRU(2, stateful=True, name="memory"),
        keras.layers.RNN(keras.layers.LSTMCell(2), stateful=True, name="memory"),
    ):
        (found,) = layers_that_may_mix(keras.Model(inputs, layer(inputs)))
        assert found.endswith(" 'memory'")


def test_code_of_the_user_is_not_known(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    class Own(keras.layers.Layer):
        def call(self, x):
            return x

        def compute_output_shape(self, shape):
            return shape

    net = Net()
    net(importlib.import_module("numpy").ones((1, 2), "float32"))
    assert layers_that_may_mix(net) == ("Net 'net'",)
    wrapped = built(keras, keras.layers.TimeDistributed(Own(name="own")), shape=(3, 2))
    assert layers_that_may_mix(wrapped) == ("Own 'own'",)


def test_bare_operations_are_not_known_but_arithmetic_is():
    keras = importlib.import_module("keras")
    x = keras.Input((4,), name="x")
    plain = keras.Model(x, keras.layers.Dense(4)(x) + x * 2.0)
    assert layers_that_may_mix(plain) == ()
    ops = keras.ops
    column = keras.layers.Reshape((1, 4))(x)
    for output, kind in (
        (x - ops.mean(x, axis=0, keepdims=True), "Mean"),
        (x - ops.average(x, axis=0), "Average"),
        (ops.reshape(x, (1, -1, 4)), "Reshape"),
        (ops.softmax(x, axis=None), "Softmax"),
        (ops.dot(x, ops.reshape(x, (4, -1))), "Dot"),
        (column * x, "Multiply"),
        (ops.add(*ops.split(x, 2, axis=1)), "Split"),
    ):
        found = layers_that_may_mix(keras.Model(x, output))
        assert kind in {each.partition(" ")[0] for each in found}, found
