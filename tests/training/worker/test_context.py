from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from timonel.data import Dataset, load, load_registry
from timonel.errors import ModelError
from timonel.models.exports import reference_of, verify_export
from timonel.training import TrainingContext, context
from timonel.training.cluster import Cluster
from timonel.training.worker import exporting
from timonel.training.worker.fit import loops
from timonel.training.worker.fit.managed_fit import Fitted


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    load_registry.reset()
    exporting._exported_by_script.clear()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingContext:
    monkeypatch.chdir(tmp_path)
    return context()


@pytest.fixture(scope="module")
def model() -> object:
    import keras

    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )


def test_outside_a_job_one_process_leads(here: TrainingContext, tmp_path: Path) -> None:
    assert not here.in_job
    assert here.is_chief
    assert here.job_dir == tmp_path / "timonel-job"
    assert here.checkpoint_dir.parent == here.export_dir.parent == here.job_dir
    assert not here.job_dir.exists()


@pytest.mark.process
def test_the_fitted_model_takes_what_was_loaded(
    here: TrainingContext, model: object, dataset: Dataset
) -> None:
    train = load(dataset.uri, batch_size=8)
    assert exporting.export_fitted(here.export_dir, Fitted(model, train)) is None
    export = verify_export(here.export_dir)
    assert export.preparation.input_kind == "image"
    assert export.labels == dataset.labels
    reference = reference_of(here.export_dir, export)
    assert [example.key for example in reference] == dataset.keys("test")
    raw = [Path(str(example.source)).read_bytes() for example in reference]
    served = tf.saved_model.load(here.export_dir / "saved_model").signatures["serving_default"]
    scores = served(image_bytes=tf.constant(raw))["scores"]
    assert np.allclose(scores, [example.scores for example in reference], atol=1e-6)


@pytest.mark.process
def test_the_users_own_preprocessing(
    here: TrainingContext, model: object, dataset: Dataset
) -> None:
    load(dataset.uri, batch_size=8)

    def preprocess(content: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.io.decode_png(content, channels=1), tf.float32) / 255.0

    here.export(model, preprocess=preprocess, labels=("a", "b"))
    export = verify_export(here.export_dir)
    assert export.preparation.source == "preprocess"
    assert export.labels == ("a", "b")
    # What the script exports itself is not replaced at the end.
    before = export.digest
    assert exporting.export_fitted(here.export_dir, None) is None
    assert verify_export(here.export_dir).digest == before


@pytest.mark.process
def test_a_failed_export_of_the_script_keeps_the_fitted_model(
    here: TrainingContext, model: object
) -> None:
    shape = r"preprocess returns shape \(1, 8, 8, 1\), the model takes \(8, 8, 1\): return"
    with pytest.raises(ModelError, match=shape):
        here.export(model, preprocess=lambda _: tf.zeros((1, 8, 8, 1)))
    fitted = Fitted(model, np.zeros((4, 8, 8, 1), np.float32))
    assert exporting.export_fitted(here.export_dir, fitted) is None
    assert verify_export(here.export_dir).preparation.input_kind == "tensor"


@pytest.mark.process
def test_a_model_of_arrays_takes_tensors(here: TrainingContext, model: object) -> None:
    assert (
        exporting.export_fitted(here.export_dir, Fitted(model, np.zeros((4, 8, 8, 1), np.float32)))
        is None
    )
    assert verify_export(here.export_dir).preparation.input_kind == "tensor"


def test_nothing_was_fitted(here: TrainingContext) -> None:
    assert exporting.export_fitted(here.export_dir, None) == (
        "the script called no fit and saved no model: there is none to export"
    )
    assert not here.export_dir.exists()


def test_a_model_that_cannot_be_exported_spoils_nothing(here: TrainingContext) -> None:
    import keras

    class Unbuilt(keras.Model):
        def call(self, x: object) -> object:
            return x

    reason = exporting.export_fitted(here.export_dir, Fitted(Unbuilt(), None))
    assert reason is not None
    assert "cannot be exported" in reason
    assert not here.export_dir.exists()


def test_rows_of_a_table(here: TrainingContext, tmp_path: Path) -> None:
    import keras

    from timonel.data import convert

    rows = [f"{n * 7 % 60},{'ab'[n % 2]},{['no', 'yes'][n % 2]}" for n in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["size,kind,answer", *rows]) + "\n")
    table = convert(tmp_path / "rows.csv", tmp_path / "table", label="answer")
    train = load(table.uri, batch_size=8)
    width = train.element_spec[0].shape[1]
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(2, activation="softmax")])

    assert exporting.export_fitted(here.export_dir, Fitted(model, train)) is None

    export = verify_export(here.export_dir)
    assert export.preparation.input_kind == "table"
    (first, *_) = reference_of(here.export_dir, export)
    assert isinstance(first.source, dict)
    assert set(first.source) == {"size", "kind"}
    served = tf.saved_model.load(here.export_dir / "saved_model").signatures["serving_default"]
    raw = {
        "size": tf.constant([first.source["size"]], tf.float32),
        "kind": tf.constant([first.source["kind"]]),
    }
    assert np.allclose(served(**raw)["scores"][0], first.scores, atol=1e-6)


def test_functions_of_map_are_part_of_the_served_model(
    here: TrainingContext, tmp_path: Path
) -> None:
    import keras

    from timonel.data import convert

    rows = [f"word{n % 5} word{n % 3},{n * 7 % 23},{['no', 'yes'][n % 2]}" for n in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["note,size,answer", *rows]) + "\n")
    table = convert(tmp_path / "rows.csv", tmp_path / "t", label="answer", columns={"note": "text"})
    train = load(table.uri, batch_size=8, features="columns")
    words = keras.layers.StringLookup(vocabulary=[f"word{n}" for n in range(5)])
    model = keras.Sequential(
        [keras.layers.Embedding(6, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    )
    mapped = train.map(lambda x, y: (words(tf.strings.split(x["note"]).to_tensor()), y))
    model(next(iter(mapped))[0])

    assert exporting.export_fitted(here.export_dir, Fitted(model, mapped)) is None

    export = verify_export(here.export_dir)
    assert (export.preparation.input_kind, export.notes) == ("table", ())
    assert export.preparation.source == "data.load and map"
    (first, *_) = reference_of(here.export_dir, export)
    served = tf.saved_model.load(here.export_dir / "saved_model").signatures["serving_default"]
    found = served(note=tf.constant([first.source["note"]]))
    assert np.allclose(found["scores"][0], first.scores, atol=1e-6)


def test_validation_data_tell_what_only_training_does(
    here: TrainingContext, model: object, dataset: Dataset
) -> None:
    train, validation = load(dataset.uri, batch_size=8), load(dataset.uri, split="validation")
    shifted = train.map(lambda x, y: (x + 1, y))
    assert exporting.export_fitted(here.export_dir, Fitted(model, shifted, validation)) is None
    assert verify_export(here.export_dir).preparation.source == "data.load"


def test_inputs_that_cannot_be_made_from_raw_ones_leave_tensors(
    here: TrainingContext, model: object, dataset: Dataset
) -> None:
    train = load(dataset.uri, batch_size=8)
    shifted = train.map(lambda x, y: (x + tf.cast(y, tf.float32)[:, None, None, None], y))
    warnings: list[str] = []
    assert exporting.export_fitted(here.export_dir, Fitted(model, shifted), warnings.append) is None
    export = verify_export(here.export_dir)
    assert export.preparation.input_kind == "tensor"
    assert "makes the inputs from the labels" in export.notes[0]
    assert export.labels == dataset.labels
    assert "context().export(model, preprocess=...)" in warnings[0]


def test_random_outputs_are_not_compared(here: TrainingContext, dataset: Dataset) -> None:
    import keras

    class Noise(keras.layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x + tf.random.normal(tf.shape(x))

    noisy = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), Noise()])
    train = load(dataset.uri, batch_size=8)
    assert exporting.export_fitted(here.export_dir, Fitted(noisy, train)) is None
    assert verify_export(here.export_dir).unchecked == "the model's outputs are random"


@pytest.mark.process
def test_an_evaluator_exports_nothing(tmp_path: Path, model: object) -> None:
    cluster = Cluster({"chief": ("127.0.0.1:1",)}, "evaluator", 0)
    TrainingContext(cluster=cluster, job_dir=tmp_path).export(model)
    assert not any(tmp_path.iterdir())


def test_a_loop_of_two_workers_without_a_strategy_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    cluster = Cluster({"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",)}, "chief", 0)
    task = TrainingContext(cluster=cluster, job_dir=tmp_path)
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    data = tf.data.Dataset.from_tensor_slices(np.ones((4, 2), np.float32)).batch(2)

    def train(epochs: int) -> list[int]:
        monkeypatch.setattr(loops, "_numbers", itertools.count())
        saved = task.checkpointer({"model": model}, data=data)
        done = []
        for epoch in saved.epochs(epochs):
            for batch in saved.batches():
                model(batch, training=True)
            done.append(epoch)
        return done

    assert train(1) == [0]
    moving = [variable.numpy() for variable in model.non_trainable_variables]
    for variable in model.non_trainable_variables:
        variable.assign(variable * 0)
    assert train(1) == []
    assert np.array_equal([variable.numpy() for variable in model.non_trainable_variables], moving)
    assert train(2) == [1]
