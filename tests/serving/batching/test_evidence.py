"""From an export to a version under load: each answer is the one that the request gets alone."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.serving.batching.runtime import ScheduledRuntime
from timonel.models import ModelRepository
from timonel.models.check import compare
from timonel.models.check_process import CheckRequest, answer
from timonel.models.exports import reference_of, saved_model_of
from timonel.models.savedmodel import export_live
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.settings.runtime import RuntimeSettings

pytestmark = pytest.mark.slow
CLIENTS, REQUESTS = 24, 10
COLUMNS = {"a": "float32", "b": "float32", "text": "string"}
WORDS = ("good", "bad", "film", "very", "long", "story", "great", "not")


def row_of(dice):
    words = " ".join(dice.choices(WORDS, k=dice.randint(1, 7)))
    return {"a": dice.uniform(-2, 2), "b": dice.uniform(-2, 2), "text": words}


def row_wise(dice):
    """A layer of each kind that keeps its input's shape [B, 8]."""
    layers = keras.layers
    return dice.choice(
        (
            layers.Dense(8, activation=dice.choice(("relu", "tanh", "softmax"))),
            layers.BatchNormalization(),
            layers.LayerNormalization(),
            lambda x: layers.Add()([x, layers.Dense(8)(x)]),
            lambda x: layers.Flatten()(layers.Conv1D(2, 3, padding="same")(pairs(x))),
            lambda x: layers.GRU(8)(pairs(x)),
            lambda x: layers.Flatten()(layers.MultiHeadAttention(2, 2)(pairs(x), pairs(x))),
            lambda x: x * 2.0 - x,
        )
    )


def pairs(x):
    return keras.layers.Reshape((4, 2))(x)


MIXING = {
    "centred": lambda x: x - keras.ops.mean(x, axis=0, keepdims=True),
    "softmax over the batch": lambda x: x * keras.layers.Softmax(axis=0)(x),
    "own layer": lambda x: x - keras.layers.Lambda(lambda y: tf.reduce_max(y, axis=0))(x),
    "neighbour": lambda x: x + keras.ops.roll(x, 1, axis=0),
}


def classifier(dice, mix=None):
    """A model of two numbers and a text, with random layers between."""
    vectors = keras.layers.TextVectorization(max_tokens=12, output_sequence_length=6)
    vectors.adapt([" ".join(WORDS)])
    numbers = keras.Input((2,), name="numbers")
    text = keras.Input((), dtype="string", name="text")
    words = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(12, 4)(vectors(text)))
    x = keras.layers.Dense(8)(keras.layers.Concatenate()([numbers, words]))
    chain = [row_wise(dice) for _ in range(3)]
    if mix is not None:
        chain.insert(dice.randrange(4), mix)
    for layer in chain:
        x = layer(x)
    return keras.Model({"numbers": numbers, "text": text}, keras.layers.Dense(3, "softmax")(x))


def publish(model, folder, dice):
    """Export the model, check it, and publish it as a version."""
    labels = ["x", "y", "z"]
    rows = [row_of(dice) for _ in range(40)]

    def transform(columns):
        numbers = tf.stack([columns["a"], columns["b"]], axis=1)
        return {"numbers": numbers, "text": columns["text"]}

    columns = {name: tf.constant([row[name] for row in rows]) for name in COLUMNS}
    export = export_live(
        model,
        folder / "export",
        preprocessing={},
        labels=labels,
        input_kind="table",
        label_mode="int",
        transform=transform,
        columns=COLUMNS,
        reference={
            "keys": [f"row-{number}" for number in range(len(rows))],
            "sources": rows,
            "outputs": {"scores": np.asarray(model(transform(columns), training=False))},
        },
    )
    request = CheckRequest(
        saved_model=saved_model_of(folder / "export"),
        reference=folder / "export" / "reference.jsonl",
        input_kind="table",
        outputs=("scores",),
    )
    examples = reference_of(folder / "export", export)
    check = compare(examples, answer(request), labels)
    return ModelRepository(folder / "models").publish("m", folder / "export", check=check)


def load(version, batches):
    settings = RuntimeSettings(
        intra_op_threads=1, inter_op_threads=1, batching=AdaptiveBatching(slots=1)
    )
    runtime = ScheduledRuntime(TensorFlowRuntime(), batches.append)
    return runtime.load(version.path, settings)


def check_under_load(version, dice):
    """Compare answers under load with those alone; return the largest batch."""
    batches = []
    model = load(version, batches)

    def ask(row):
        inputs = {
            name: np.array([value.encode()], object)
            if isinstance(value, str)
            else np.array([value], np.float32)
            for name, value in row.items()
        }
        return model.run("serving_default", inputs)

    rows = [row_of(dice) for _ in range(CLIENTS * REQUESTS)]
    alone = [ask(row) for row in rows]
    together = threading.Barrier(CLIENTS)

    def client(number):
        together.wait()
        return [ask(row) for row in rows[number::CLIENTS]]

    with ThreadPoolExecutor(CLIENTS) as pool:
        loaded = list(pool.map(client, range(CLIENTS)))
    for number, answers in enumerate(loaded):
        for found, expected in zip(answers, alone[number::CLIENTS], strict=True):
            np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-4, atol=1e-5)
    model.close()
    return max((batch.rows for batch in batches), default=0)


@pytest.mark.parametrize("seed", range(6))
def test_models_of_known_layers_are_batched(tmp_path, seed):
    dice = random.Random(seed)
    keras.utils.set_random_seed(seed)
    version = publish(classifier(dice), tmp_path, dice)
    assert version.document.rows.independent, version.document.rows.reason
    assert check_under_load(version, dice) > 1


@pytest.mark.parametrize("kind", MIXING)
def test_models_that_mix_rows_are_not(tmp_path, kind):
    dice = random.Random(kind)
    keras.utils.set_random_seed(1)
    version = publish(classifier(dice, MIXING[kind]), tmp_path, dice)
    assert not version.document.rows.independent
    assert version.document.check.rows_alone == 16
    assert check_under_load(version, dice) == 0


def test_the_comparison_alone_tells_of_mixing_as_well(tmp_path):
    dice = random.Random(0)
    keras.utils.set_random_seed(1)
    for kind in ("centred", "neighbour"):
        version = publish(classifier(dice, MIXING[kind]), tmp_path / kind, dice)
        assert version.document.check.rows_mixed > 0
