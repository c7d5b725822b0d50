"""Exports of real Keras models, loaded back without Python and asked as a client asks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from timonel.errors import InputError, ModelError, SpecError
from timonel.models import Export, ModelRepository, signatures_of
from timonel.models.exports import read_export, reference_of, verify_export
from timonel.models.savedmodel import export_live, is_chief

LABELS = ["cat", "dog", "emu"]
SPEC = {"kind": "image", "height": 6, "width": 5}


def prepare_images(content: Any) -> Any:
    """As data.load does: decode, resize, scale."""

    def one(encoded: Any) -> Any:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return tf.image.resize(image, (6, 5)) / 255.0

    return tf.map_fn(one, content, fn_output_signature=tf.TensorSpec((6, 5, 3), tf.float32))


def png(seed: int, size: tuple[int, int] = (9, 8)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    return bytes(tf.io.encode_png(pixels).numpy())


def image_model(*last: Any) -> Any:
    layers = [keras.Input((6, 5, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dropout(0.5), *last])


def export_images(model: Any, folder: Path, **more: Any) -> Export:
    arguments = {
        "preprocessing": SPEC,
        "labels": LABELS,
        "input_kind": "image",
        "label_mode": "int",
        "transform": prepare_images,
    }
    return export_live(model, folder, **{**arguments, **more})


def export_tensors(model: Any, folder: Path, **more: Any) -> Export:
    given = {"preprocessing": None, "labels": None, "label_mode": None} | more
    return export_live(model, folder, input_kind="tensor", **given)


def load(folder: Path, signature: str = "serving_default") -> Callable[..., dict[str, Any]]:
    loaded = tf.saved_model.load(str(folder / "saved_model")).signatures[signature]
    # The loaded object owns the variables; the function alone would lose them.
    return lambda **inputs: {name: value.numpy() for name, value in loaded(**inputs).items()}


@pytest.fixture(autouse=True)
def fresh_names() -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)


def test_raw_images_give_labels_and_scores(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(3, activation="softmax"))
    export = export_images(model, tmp_path / "export")
    images = [png(0), png(1, (30, 20)), png(2, (6, 5))]
    images.append(bytes(tf.io.encode_jpeg(np.full((7, 7, 3), 90, np.uint8)).numpy()))

    answer = load(tmp_path / "export")(image_bytes=tf.constant(images))

    expected = model.predict(prepare_images(tf.constant(images)), verbose=0)
    np.testing.assert_allclose(answer["scores"], expected, atol=1e-5)
    assert answer["scores"].dtype == np.float32
    assert answer["class_id"].tolist() == expected.argmax(1).tolist()
    assert [label.decode() for label in answer["label"]] == [
        LABELS[number] for number in expected.argmax(1)
    ]
    assert export.meaning.because == "the final activation is softmax"
    assert (export.meaning.applied, export.notes) == (None, ())
    serving = export.signatures["serving_default"]
    assert {name: (t.dtype, t.shape) for name, t in serving.inputs.items()} == {
        "image_bytes": ("string", (-1,))
    }
    assert {name: (t.dtype, t.shape) for name, t in serving.outputs.items()} == {
        "class_id": ("int64", (-1,)),
        "dense": ("float32", (-1, 3)),
        "label": ("string", (-1,)),
        "scores": ("float32", (-1, 3)),
    }
    assert {each.method for each in export.signatures.values()} == {"tensorflow/serving/predict"}


@pytest.mark.parametrize("encode", [tf.io.encode_jpeg, tf.io.encode_png])
def test_grey_and_one_by_one_images_are_answered(
    tmp_path: Path, encode: Callable[[Any], Any]
) -> None:
    export_images(image_model(keras.layers.Dense(3)), tmp_path / "export")
    tiny = encode(np.zeros((1, 1, 1), np.uint8))
    answer = load(tmp_path / "export")(image_bytes=tf.stack([tiny]))
    assert answer["scores"].shape == (1, 3)


def test_the_tensor_signature_is_the_model_itself(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(3))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    export_images(model, tmp_path / "export")
    images = np.random.default_rng(0).random((4, 6, 5, 3), np.float32)
    answer = load(tmp_path / "export", "tensor")(input=tf.constant(images))
    np.testing.assert_allclose(
        answer["dense"], model.predict(images, verbose=0), atol=1e-5, strict=True
    )


def test_logits_become_probabilities(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(3))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    export = export_images(model, tmp_path / "export")
    images = tf.constant([png(0), png(1)])
    logits = model.predict(prepare_images(images), verbose=0)
    answer = load(tmp_path / "export")(image_bytes=images)
    np.testing.assert_allclose(answer["scores"], tf.nn.softmax(logits), atol=1e-5)
    np.testing.assert_allclose(answer["dense"], logits, atol=1e-5)
    assert (export.meaning.output, export.meaning.applied) == ("logits", "softmax")


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_one_sigmoid_becomes_two_scores(tmp_path: Path, activation: str | None) -> None:
    model = image_model(keras.layers.Dense(1, activation=activation))
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=activation is None))
    export = export_images(model, tmp_path / "export", labels=["no", "yes"])
    images = tf.constant([png(number) for number in range(8)])
    output = model.predict(prepare_images(images), verbose=0)[:, 0]
    positive = output if activation else tf.sigmoid(output).numpy()
    answer = load(tmp_path / "export")(image_bytes=images)
    np.testing.assert_allclose(answer["scores"], np.stack([1 - positive, positive], 1), atol=1e-5)
    assert answer["label"].tolist() == [b"yes" if p > 0.5 else b"no" for p in positive]
    assert export.meaning.binary


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_outputs_have_the_models_names(tmp_path: Path, flavour: Any) -> None:
    model = flavour.Sequential(
        [flavour.layers.InputLayer((4,)), flavour.layers.Dense(3, name="last")]
    )
    export = export_tensors(model, tmp_path / "export", labels=LABELS)
    assert set(export.signatures["tensor"].outputs) == {"last"}
    assert set(export.signatures["serving_default"].outputs) == {
        "last", "label", "scores", "class_id",
    }  # fmt: skip


def test_a_models_own_output_called_scores_keeps_its_name(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="scores")])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    export_tensors(model, tmp_path / "export", labels=LABELS)
    rows = np.random.default_rng(0).random((2, 4), np.float32)
    answer = load(tmp_path / "export")(input=tf.constant(rows))
    logits = model.predict(rows, verbose=0)
    np.testing.assert_allclose(answer["scores"], logits, atol=1e-5)
    np.testing.assert_allclose(answer["predicted_scores"], tf.nn.softmax(logits), atol=1e-5)
    assert set(answer) == {"scores", "predicted_scores", "label", "class_id"}


def test_several_labels_of_an_example_give_scores_alone(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    folder = tmp_path / "export"
    reference = {"keys": ["a"], "outputs": {"dense": [[0.0, 1, 2]]}, "labels": [[0, 1, 1]]}
    export = export_tensors(
        model, folder, labels=LABELS, label_mode="multihot", reference=reference
    )
    answer = load(folder)(input=tf.zeros((2, 4)))
    assert set(answer) == {"dense", "scores"}
    np.testing.assert_allclose(answer["scores"], 0.5 * np.ones((2, 3)))
    (example,) = reference_of(folder, export)
    assert example.label is None
    np.testing.assert_allclose(example.scores, tf.sigmoid([0.0, 1, 2]), atol=1e-6)


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_a_model_without_call_is_served_by_its_parts(tmp_path: Path, flavour: Any) -> None:
    class Autoencoder(flavour.Model):  # type: ignore[misc] # two Kerases
        def __init__(self) -> None:
            super().__init__()
            layers = flavour.layers
            self.encoder = flavour.Sequential([layers.InputLayer((4,)), layers.Dense(2)])
            self.decoder = flavour.Sequential([layers.InputLayer((2,)), layers.Dense(4)])

    export = export_tensors(Autoencoder(), tmp_path / "export")
    assert set(export.signatures) == {"serving_default", "encoder", "decoder"}
    assert export.signatures["serving_default"] == export.signatures["encoder"]
    (name,) = export.signatures["decoder"].inputs
    answer = load(tmp_path / "export", "decoder")(**{name: tf.ones((3, 2))})
    assert [each.shape for each in answer.values()] == [(3, 4)]
    assert export.model.parameters == 22
    assert export.notes[-1] == (
        "serving_default is the part encoder; signature_name= asks for decoder"
    )


def test_tables_of_a_plain_function_are_saved(tmp_path: Path) -> None:
    lookup = keras.layers.StringLookup(vocabulary=["x", "y"], output_mode="one_hot")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    export_live(
        model,
        tmp_path / "export",
        preprocessing=None,
        labels=None,
        input_kind="table",
        label_mode=None,
        columns={"word": "string"},
        transform=lambda rows: lookup(rows["word"]),
    )
    answer = load(tmp_path / "export")(word=tf.constant(["y", "z"]))
    expected = model.predict(np.array([[0, 0, 1], [1, 0, 0]], np.float32), verbose=0)
    np.testing.assert_allclose(answer["dense"], expected, atol=1e-6)


def test_a_regression_gives_one_value_per_row(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(1))
    model.compile(loss="mse")
    export = export_images(model, tmp_path / "export", labels=None, label_mode=None)
    images = tf.constant([png(0), png(1)])
    answer = load(tmp_path / "export")(image_bytes=images)
    expected = model.predict(prepare_images(images), verbose=0)
    np.testing.assert_allclose(answer["dense"], expected, atol=1e-5, strict=True)
    assert export.meaning.task == "regression"
    assert not (tmp_path / "export/saved_model/assets/labels.txt").exists()


COLUMNS = {"sepal length (cm)": "float32", "class": "string", "Größe": "float32", "a": "float32"}
ALIKE = {"a b": "float32", "class": "string", "a_b": "float32", "self": "float32"}


def prepare_rows(rows: dict[str, Any]) -> Any:
    """Missing numbers are NaN, missing words empty."""
    numbers = [column for column in rows.values() if column.dtype == tf.float32]
    known = [tf.where(tf.math.is_nan(number), 0.0, number) for number in numbers]
    return tf.stack([*known, tf.cast(rows["class"] == "x", tf.float32)], axis=1)


@pytest.mark.parametrize("columns", [COLUMNS, ALIKE], ids=["odd", "alike"])
def test_raw_rows_keep_the_names_of_their_columns(tmp_path: Path, columns: dict[str, str]) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    export = export_live(
        model,
        tmp_path / "export",
        preprocessing={"kind": "table"},
        labels=LABELS,
        input_kind="table",
        label_mode="int",
        transform=prepare_rows,
        columns=columns,
    )
    numbers = iter([[1.0, float("nan")], [2.0, 3.0], [-2.0, -3.0]])
    rows = {
        name: tf.constant(["x", ""] if dtype == "string" else next(numbers))
        for name, dtype in columns.items()
    }
    expected = model.predict(prepare_rows(rows), verbose=0)
    assert {name: t.dtype for name, t in export.signatures["serving_default"].inputs.items()} == (
        columns
    )
    # TensorFlow Serving feeds by the names of the signature definition.
    graph = tf.Graph()
    with tf.compat.v1.Session(graph=graph) as session:
        meta = tf.compat.v1.saved_model.load(
            session, ["serve"], str(tmp_path / "export/saved_model")
        )
        definition = meta.signature_def["serving_default"]
        feed = {definition.inputs[name].name: value.numpy() for name, value in rows.items()}
        scores = session.run(definition.outputs["scores"].name, feed)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    if columns is COLUMNS:  # names that tf.saved_model.load can tell apart
        answer = load(tmp_path / "export")(**rows)
        np.testing.assert_allclose(answer["scores"], expected, atol=1e-5)


def test_several_inputs_and_outputs_go_by_name(tmp_path: Path) -> None:
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="Right")
    joined = keras.layers.Concatenate()([left, right])
    outputs = {
        "price": keras.layers.Dense(1, name="one")(joined),
        "kind": keras.layers.Dense(3, name="two")(joined),
    }
    model = keras.Model({"left": left, "Right": right}, outputs)
    export = export_live(
        model,
        tmp_path / "export",
        preprocessing=None,
        labels=LABELS,
        input_kind="tensor",
        label_mode="int",
    )
    inputs = {"left": tf.ones((2, 2)), "Right": tf.random.normal((2, 3))}
    expected = model.predict(inputs, verbose=0)
    for signature in ("serving_default", "tensor"):
        answer = load(tmp_path / "export", signature)(**inputs)
        assert set(answer) == {"price", "kind"}
        for name in answer:
            np.testing.assert_allclose(answer[name], expected[name], atol=1e-5)
    assert export.preparation.input_kind == "tensor"
    assert [note.partition(":")[0] for note in export.notes] == [
        "the model takes tensors, not raw files or rows",
        "the output has no labels",
    ]


def test_without_transforms_tensors_still_give_labels(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(3, activation="softmax"))
    export = export_images(model, tmp_path / "export", transform=None, preprocessing=None)
    answer = load(tmp_path / "export")(input=tf.zeros((2, 6, 5, 3)))
    assert set(answer) == {"dense", "label", "scores", "class_id"}
    assert export.preparation.source == "unknown"
    assert "not raw files" in export.notes[0]


def test_the_users_own_preprocessing_takes_one_example(tmp_path: Path) -> None:
    offset = tf.Variable(0.25)

    @tf.function
    def preprocess(content: Any) -> Any:
        image = tf.image.resize(tf.io.decode_png(content, channels=3), (6, 5))
        if tf.reduce_max(image) > 200.0:  # the user's AutoGraph goes on working
            image = image / 255.0
        return image + offset

    model = image_model(keras.layers.Dense(3, activation="softmax"))
    export = export_images(model, tmp_path / "export", preprocess=preprocess)
    images = [png(0), bytes(tf.io.encode_png(np.full((4, 4, 3), 9, np.uint8)).numpy())]
    expected = model.predict(tf.stack([preprocess(each) for each in images]), verbose=0)
    answer = load(tmp_path / "export")(image_bytes=tf.constant(images))
    np.testing.assert_allclose(answer["scores"], expected, atol=1e-5)
    assert (export.preparation.source, export.preparation.transforms) == ("preprocess", None)


def test_own_preprocessing_of_another_shape_is_refused(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(3))
    with pytest.raises(ModelError, match=r"returns shape \(2, 2\), the model takes \(6, 5, 3\): "):
        export_images(model, tmp_path / "export", preprocess=lambda content: tf.zeros((2, 2)))
    assert list(tmp_path.iterdir()) == []
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        assert tf.Variable(1.0).numpy() == 1.0  # nothing is left of the failed tracing


@keras.saving.register_keras_serializable("tests")
class Doubling(keras.layers.Layer):  # type: ignore[misc]
    """A layer that only this file knows, with a raw variable and a lookup table."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = self.add_weight(shape=(), initializer="ones")
        self.raw = tf.Variable(2.0)
        keys, values = tf.constant([0, 1], tf.int64), tf.constant([0.0, 1.0])
        table = tf.lookup.KeyValueTensorInitializer(keys, values)
        self.table = tf.lookup.StaticHashTable(table, 0.0)

    def call(self, inputs: Any) -> Any:
        known = self.table.lookup(tf.ones(tf.shape(inputs)[:1], tf.int64))
        return inputs * self.factor * self.raw * known[:, tf.newaxis, tf.newaxis, tf.newaxis]


class Subclassed(keras.Model):  # type: ignore[misc]
    """A model that no configuration describes."""

    def __init__(self) -> None:
        super().__init__()
        self.double = Doubling()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return keras.ops.softmax(self.dense(self.flatten(self.double(inputs))))


@pytest.mark.process
def test_custom_layers_are_served_without_their_python(tmp_path: Path) -> None:
    model = Subclassed()
    model.compile(loss="sparse_categorical_crossentropy")
    images = [png(0), png(1)]
    expected = model.predict(prepare_images(tf.constant(images)), verbose=0)
    export = export_images(model, tmp_path / "export")
    assert export.meaning.because == "the loss has from_logits=False"
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "export/saved_model", moved)
    for number, content in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(content)
    script = """
import sys, json, pathlib, tensorflow as tf
folder = pathlib.Path(sys.argv[1])
images = tf.constant([(folder.parent / f"{i}.png").read_bytes() for i in range(2)])
served = tf.saved_model.load(str(folder)).signatures["serving_default"](image_bytes=images)
print(json.dumps(served["scores"].numpy().tolist()))
"""
    found = subprocess.run(
        [sys.executable, "-c", script, str(moved)], capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(json.loads(found.stdout), expected, atol=1e-5)
    assert str(tmp_path).encode() not in (moved / "saved_model.pb").read_bytes()
    assert os.fsencode(Path(__file__).parent) not in (moved / "saved_model.pb").read_bytes()


def test_an_unbuilt_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has not been built"):
        export_images(Subclassed(), tmp_path / "export")
    with pytest.raises(ModelError, match="has not been built"):
        export_images(keras.Sequential([keras.layers.Dense(3)]), tmp_path / "export")


@pytest.mark.parametrize("flavour", [keras, tf_keras])
def test_a_model_that_cannot_be_called_is_refused_as_such(flavour: Any, tmp_path: Path) -> None:
    class Pair(flavour.Model):  # type: ignore[misc] # two Kerases
        pass

    with pytest.raises(ModelError, match=r"Pair 'pair' has no call\(\)"):
        export_images(Pair(), tmp_path / "export")


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a Keras model"):
        export_images(tf.Module(), tmp_path / "export")


def test_raw_input_needs_its_kind_and_columns(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(3))
    with pytest.raises(SpecError, match="needs the input kind 'image' or 'table'"):
        export_images(model, tmp_path / "export", input_kind="tensor")
    with pytest.raises(SpecError, match="expected columns of type"):
        export_images(model, tmp_path / "export", input_kind="table")


def test_an_export_replaces_the_one_before_and_knows_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    model = image_model(keras.layers.Dense(3, activation="softmax"))
    first = export_images(model, folder)
    model.layers[-1].bias.assign([5.0, 0.0, 0.0])
    second = export_images(model, folder)
    assert first.digest != second.digest
    assert verify_export(folder) == second == read_export(folder)
    assert {path.name for path in folder.iterdir()} == {
        "architecture.json",
        "export.json",
        "saved_model",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"export"}
    assert (folder / "saved_model/assets/labels.txt").read_text() == "cat\ndog\nemu\n"
    assert second.model.parameters == model.count_params()
    assert second.versions["keras"] == keras.__version__


def test_a_full_disk_is_named_and_leaves_nothing(small_disk: Path) -> None:
    for left in (1_000, 20_000):
        (small_disk / "filler").write_bytes(b"x" * (65_536 - 4_096 - left))
        with pytest.raises(InputError, match=r"write .*/export: No space left on device"):
            export_images(image_model(keras.layers.Dense(2000)), small_disk / "export")
        assert [path.name for path in small_disk.iterdir()] == ["filler"]
        (small_disk / "filler").unlink()


def test_the_labels_are_an_asset_of_the_saved_model(tmp_path: Path) -> None:
    export_images(image_model(keras.layers.Dense(3)), tmp_path / "export")
    content = (tmp_path / "export/saved_model/saved_model.pb").read_bytes()
    from tensorflow.core.protobuf import saved_model_pb2

    (meta,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    assert [asset.filename for asset in meta.asset_file_def] == ["labels.txt"]


@pytest.mark.parametrize(
    "truth", [[2, 0], [[2], [0]], [[0, 0, 1], [1, 0, 0]], ["emu", "cat"]], ids=str
)
def test_held_out_predictions_are_kept_as_scores(tmp_path: Path, truth: Any) -> None:
    model = image_model(keras.layers.Dense(3))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    logits = np.array([[1.0, 2.0, 3.0], [0.5, 0.0, 0.0]], np.float32)
    reference = {
        "keys": ["emu/1.png", "cat/2.png"],
        "sources": [tmp_path / "emu/1.png", tmp_path / "cat/2.png"],
        "outputs": {"dense": logits},
        "labels": truth,
    }
    export = export_images(model, tmp_path / "export", reference=reference)
    first, second = reference_of(tmp_path / "export", export)
    assert (first.key, first.source) == ("emu/1.png", str(tmp_path / "emu/1.png"))
    assert (first.label, second.label) == (2.0, 0.0)
    np.testing.assert_allclose(first.scores, tf.nn.softmax(logits[0]), atol=1e-6)


@pytest.mark.slow
def test_mirrored_variables_are_saved_once(tmp_path: Path) -> None:
    # Two replicas on one device: distributed variables, without devices to configure before
    # TensorFlow starts.
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = image_model(keras.layers.Dense(3, activation="softmax"))
    model.compile("sgd", "sparse_categorical_crossentropy")
    images = [png(number) for number in range(4)]
    prepared = prepare_images(tf.constant(images))
    model.fit(prepared, np.array([0, 1, 2, 0]), batch_size=4, verbose=0)
    export_images(model, tmp_path / "export")
    answer = load(tmp_path / "export")(image_bytes=tf.constant(images))
    np.testing.assert_allclose(answer["scores"], model.predict(prepared, verbose=0), atol=1e-5)
    stored = tf.train.list_variables(str(tmp_path / "export/saved_model/variables/variables"))
    values = [name for name, _ in stored if name.endswith(".ATTRIBUTES/VARIABLE_VALUE")]
    # Of eight weights (two of them the moving ones); the dropout's seed is not used in inference.
    assert len(values) == 8


def test_the_chief_is_the_one_whose_files_are_kept() -> None:
    class Resolver:
        def __init__(self, task_type: str | None, task_id: int, jobs: list[str]) -> None:
            self.task_type, self.task_id, self._jobs = task_type, task_id, jobs

        def cluster_spec(self) -> Any:
            return tf.train.ClusterSpec({job: ["127.0.0.1:1"] for job in self._jobs})

    class Strategy:
        def __init__(self, *resolver: Any) -> None:
            self.cluster_resolver = Resolver(*resolver) if resolver else None

    assert is_chief(Strategy())
    assert is_chief(Strategy("chief", 0, ["chief", "worker"]))
    assert is_chief(Strategy("worker", 0, ["worker"]))
    assert not is_chief(Strategy("worker", 0, ["chief", "worker"]))
    assert not is_chief(Strategy("worker", 1, ["worker"]))
    assert not is_chief(Strategy("evaluator", 0, ["chief", "evaluator"]))


@pytest.mark.process
def test_tf_keras_models_are_exported_too(tmp_path: Path) -> None:
    script = Path(__file__).with_name("legacy_export.py")
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    for name in ("sequential", "subclassed"):
        expected = np.load(tmp_path / f"{name}.npz")
        images = tf.constant([bytes(each) for each in expected["images"]])
        answer = load(tmp_path / name)(image_bytes=images)
        np.testing.assert_allclose(answer["scores"], expected["scores"], atol=1e-5)
        export = read_export(tmp_path / name)
        assert "tf_keras" in export.versions
        assert export.signatures == signatures_of(tmp_path / name / "saved_model")
    assert read_export(tmp_path / "sequential").meaning.applied == "softmax"


def test_a_version_gives_the_answers_of_its_export(tmp_path: Path) -> None:
    model = image_model(keras.layers.Dense(3, activation="softmax"))
    export_images(model, tmp_path / "export")
    version = ModelRepository(tmp_path / "models").publish("pets", tmp_path / "export")
    shutil.rmtree(tmp_path / "export")
    served = tf.saved_model.load(version.uri).signatures["serving_default"]
    answer = served(image_bytes=tf.constant([png(3)]))
    expected = model.predict(prepare_images(tf.constant([png(3)])), verbose=0)
    np.testing.assert_allclose(answer["scores"], expected, atol=1e-5)
