"""`add_model` takes models that other tools made, and tries them first."""

from __future__ import annotations

import importlib
import json
import os
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.buckets import open_bucket
from timonel.errors import ModelError, NotFoundError, SpecError
from timonel.models.adding import add_model
from timonel.models.repository import ModelRepository

pytestmark = pytest.mark.process


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Keras model in all forms: making them takes seconds."""
    import keras
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("made")
    with warnings.catch_warnings():  # of Keras and TensorFlow Lite about NumPy
        warnings.simplefilter("ignore")
        _make(keras, tf, folder)
    return folder


def _make(keras: Any, tf: Any, folder: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="last")])
    model.save(folder / "m.keras")
    model.save(folder / "m.h5")
    model.save_weights(folder / "m.weights.h5")
    model.export(folder / "plain", verbose=False)
    model.export(folder / "versions" / "1", verbose=False)
    model.export(folder / "versions" / "12", verbose=False)
    tf.saved_model.save(model, folder / "unsaved")
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    (folder / "m.tflite").write_bytes(content)


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from open_bucket("s3", request, monkeypatch)


@pytest.mark.parametrize("name", ["m.keras", "m.h5", "plain", "versions", "versions/1", "m.tflite"])
def test_every_form_becomes_a_version(made: Path, repository: ModelRepository, name: str) -> None:
    version, failure = add_model(repository, "m", made / name)
    assert failure is None
    assert (version.number, version.path.is_dir()) == (1, True)
    if name != "m.tflite":
        assert "serving_default" in version.signatures
    if name in {"m.keras", "m.h5"}:
        assert set(version.signatures["tensor"].outputs) == {"last"}
        assert version.document is not None
        assert version.document.provenance["source"][0]["name"] == name
    else:
        assert (version.path / "fingerprint.pb").is_file() != (name == "m.tflite")
    (only,) = repository.versions("m")
    assert only.number == 1


def test_of_several_versions_the_newest_is_taken(made: Path, repository: ModelRepository) -> None:
    version, _ = add_model(repository, "m", made / "versions")
    fingerprint = (version.path / "fingerprint.pb").read_bytes()
    assert fingerprint == (made / "versions" / "12" / "fingerprint.pb").read_bytes()


@pytest.mark.parametrize("name", ["m.keras", "versions", "plain"])
def test_a_model_in_a_bucket(
    made: Path, repository: ModelRepository, bucket: str, name: str
) -> None:
    from timonel.storage.object_store import ObjectStore

    source = made / name
    files = [source] if source.is_file() else [each for each in source.rglob("*") if each.is_file()]
    store = ObjectStore(bucket)
    for each in files:
        store.write(str(each.relative_to(made)), each.read_bytes())
    version, failure = add_model(repository, "m", f"{bucket}/{name}")
    assert failure is None
    assert "serving_default" in version.signatures


def test_a_keras_3_model_without_its_variables_is_refused(
    made: Path, repository: ModelRepository
) -> None:
    with pytest.raises(ModelError, match="was saved without its variables") as caught:
        add_model(repository, "m", made / "unsaved")
    assert "model.export('FOLDER')" in str(caught.value.hint)
    assert "TF_USE_LEGACY_KERAS=1" in str(caught.value.hint)
    assert repository.names() == []


@pytest.mark.parametrize("ending", ["h5", "keras"])
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_code_in_keras_files_does_not_run(
    repository: ModelRepository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    ending: str,
) -> None:
    keras = importlib.import_module(package)
    ran = str(tmp_path / "ran")
    inputs = keras.Input((4,))
    run = lambda x: (__import__("pathlib").Path(ran).touch(), x)[1]  # noqa: E731
    model = keras.Model(inputs, keras.layers.Lambda(run)(inputs))
    with warnings.catch_warnings():  # about HDF5
        warnings.simplefilter("ignore")
        model.save(str(tmp_path / f"m.{ending}"))
    Path(ran).unlink()
    if package == "tf_keras":
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    with pytest.raises(ModelError, match="cannot load"):
        add_model(repository, "m", tmp_path / f"m.{ending}")
    assert not Path(ran).exists()


MKDIR = {"module": "os", "class_name": "function", "config": "mkdir", "registered_name": "mkdir"}
CALLING = {
    "Lambda": {
        "function": MKDIR, "function_type": "function", "module": None, "arguments": {},
        "output_shape": None, "output_shape_type": "raw", "output_shape_module": None,
        "mask": None, "mask_type": "raw", "mask_module": None,
    },
    "TFOpLambda": {"function": "io.gfile.mkdir"},
    "SlicingOpLambda": {"function": "compat.v1.gfile.MkDir"},
}  # fmt: skip
"""Layers whose function makes a folder, with their configurations."""


@pytest.mark.parametrize("ending", ["keras", "h5"])
@pytest.mark.parametrize("kind", CALLING)
def test_functions_that_a_configuration_names_are_not_called(
    repository: ModelRepository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    kind: str,
) -> None:
    """tf-keras calls them with constants of the file while it makes the model."""
    import tf_keras

    ran, file = tmp_path / "ran", tmp_path / f"m.{ending}"
    inputs = tf_keras.Input((4,), name="x")
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(1, name="last")(inputs))
    with warnings.catch_warnings():  # about HDF5
        warnings.simplefilter("ignore")
        model.save(str(file))
    layer = {
        "module": "keras.layers", "class_name": kind, "registered_name": None, "name": "e",
        "config": {"name": "e", "trainable": True, "dtype": "float32"} | CALLING[kind],
        "inbound_nodes": [[["_CONSTANT_VALUE", -1, str(ran), {}]]],
    }  # fmt: skip
    if kind != "Lambda":
        layer["inbound_nodes"] = layer["inbound_nodes"][0]

    def with_layer(text: str | bytes) -> str:
        config = json.loads(text)
        config["config"]["layers"].insert(1, layer)
        return json.dumps(config)

    if ending == "h5":
        with h5py.File(file, "r+") as opened:
            opened.attrs["model_config"] = with_layer(opened.attrs["model_config"])
    else:
        with zipfile.ZipFile(file) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, with_layer(content) if name == "config.json" else content)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    with pytest.raises(ModelError, match="it would call"):
        add_model(repository, "m", file)
    assert not ran.exists()


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_operations_between_layers_of_tf_keras_are_taken(
    repository: ModelRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    import tensorflow as tf
    import tf_keras

    inputs = tf_keras.Input((8,), name="x")
    value = tf.reshape(tf.nn.relu(inputs + 1) * 2, (-1, 2, 4))
    value = tf.squeeze(tf.concat([value, value], 1)[:, :1], 1)
    value = tf.math.log1p(tf.abs(tf.reduce_mean(value, -1, keepdims=True)))
    start = tf.constant_initializer(0.5)
    last = tf_keras.layers.Dense(2, "softmax", bias_initializer=start, name="last")(value)
    with warnings.catch_warnings():  # about HDF5
        warnings.simplefilter("ignore")
        tf_keras.Model(inputs, last).save(str(tmp_path / f"m.{ending}"))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    version, failure = add_model(repository, "m", tmp_path / f"m.{ending}")
    assert failure is None
    assert set(version.signatures["tensor"].outputs) == {"last"}


def test_a_model_that_refuses_empty_texts_is_published_with_the_reason(
    repository: ModelRepository, tmp_path: Path
) -> None:
    import tensorflow as tf

    module = tf.Module()
    decode = tf.function(
        lambda image: {"size": tf.shape(tf.io.decode_image(image[0]))[:1]},
        input_signature=[tf.TensorSpec([None], tf.string, "image")],
    )
    tf.saved_model.save(module, str(tmp_path / "decoder"), {"serving_default": decode})
    version, failure = add_model(repository, "m", tmp_path / "decoder")
    assert version.number == 1
    assert failure is not None
    assert "does not take an example of zeros and empty texts: InvalidArgumentError" in failure


def test_what_is_no_model_is_refused(
    made: Path, repository: ModelRepository, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match="nothing is at"):
        add_model(repository, "m", tmp_path / "gone")
    with pytest.raises(ModelError, match="holds no model"):
        add_model(repository, "m", tmp_path)
    (tmp_path / "m.txt").write_text("x")
    with pytest.raises(ModelError, match="is not the file of a model"):
        add_model(repository, "m", tmp_path / "m.txt")
    with pytest.raises(ModelError, match=r"m\.weights\.h5 holds weights only: save the whole"):
        add_model(repository, "m", made / "m.weights.h5")
    with pytest.raises(SpecError, match="invalid model name"):
        add_model(repository, os.sep, made / "plain")
    assert repository.names() == []
