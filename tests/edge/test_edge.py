"""Conversions of real models: predictions, sizes, files and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timonel.edge import Conversion, convert_version
from timonel.edge.demo_page import write_demo_page
from timonel.edge.interpreter import LiteModel
from timonel.errors import AlreadyExistsError, InputError, SpecError
from timonel.models import ModelRepository, ModelVersion

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def convert(version: ModelVersion, folder: Path, **options: Any) -> Conversion:
    return convert_version(version, output=str(folder / "converted"), **options)


def test_images_to_litert(litert: Conversion) -> None:
    report = litert.report
    assert report.files == ("model.tflite", "model.h", "demo.html", "labels.txt")
    assert (litert.folder / "labels.txt").read_text() == "bright\ndark\n"
    assert report.size_bytes == (litert.folder / "model.tflite").stat().st_size
    (image,) = report.inputs
    assert (image.name, image.dtype, image.shape) == ("image", "float32", (1, 12, 12, 3))
    assert report.comparison.source == "test split"
    assert report.comparison.examples > 2
    assert report.comparison.max_difference < 1e-5
    assert report.comparison.accuracy == report.comparison.original_accuracy
    assert report.worst[0].difference == report.comparison.max_difference
    assert report.worst[0].image_png is not None
    assert report.timings[0].threads == 1
    assert all(0 < timing.p50_ms <= timing.p99_ms for timing in report.timings)
    assert json.loads((litert.folder / "report.json").read_text())["model"] == "shapes/1"
    assert "default-src 'none'" in (litert.folder / "demo.html").read_text()
    assert "<title>shapes/1 as LiteRT</title>" in (litert.folder / "report.html").read_text()
    scores = LiteModel(litert.folder / "model.tflite").run({"image": np.full((1, 12, 12, 3), 250)})
    assert scores["scores"].argmax() == 0, "a bright image, as pixels from 0 to 255"


def test_a_flatbuffer_finds_no_state_of_its_last_call() -> None:
    model = LiteModel(Path(__file__).parents[1] / "fixtures" / "tflite" / "running_sum.tflite")
    one = {"x": np.ones((1, 1, 1), np.float32)}
    assert [model.call(one)["y"].item() for _ in range(3)] == [1] * 3


def test_images_to_tensorflow_js(image_version: ModelVersion, tmp_path: Path) -> None:
    made = convert(image_version, tmp_path, format="tfjs", page=True)
    assert made.report.files == ("model.json", "group1-shard1of1.bin", "demo.html", "labels.txt")
    assert made.report.timings == ()
    assert made.report.comparison.max_difference < 1e-5
    page = (made.folder / "demo.html").read_text()
    assert "default-src 'none'" in page


def test_models_of_other_tools(sums: ModelVersion, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "in.npz", a=generator.random((20, 2)), b=generator.random((20, 3)))
    made = convert(sums, tmp_path, quantize="int8", samples=str(tmp_path / "in.npz"))
    assert {each.name: each.shape for each in made.report.inputs} == {"a": (1, 2), "b": (1, 3)}
    assert made.report.comparison.examples == 20
    assert made.report.comparison.max_difference < 0.5


def test_errors_of_the_process_leave_no_folder(sums: ModelVersion, tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(b"")
    with pytest.raises(InputError, match="cannot read"):
        convert(sums, tmp_path, samples=str(tmp_path / "in.npz"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.npz"]


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    """A SavedModel with two inputs, made without timonel."""
    import tensorflow as tf

    specs = [tf.TensorSpec([None, 3], tf.float32, "b"), tf.TensorSpec([None, 2], tf.float32, "a")]

    @tf.function(input_signature=specs)
    def serve(b: Any, a: Any) -> dict[str, Any]:
        return {"sum": tf.reduce_sum(b, 1) + 10 * tf.reduce_sum(a, 1)}

    folder = tmp_path_factory.mktemp("sums")
    tf.saved_model.save(tf.Module(), str(folder / "model"), signatures=serve)
    return ModelRepository(folder / "models").add("sums", folder / "model")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"integer_io": True}, "--integer-io needs integers"),
        ({"max_accuracy_drop": "1%"}, "is for --quantize int8"),
        ({"quantize": "int8", "max_accuracy_drop": "much"}, "a share such as"),
        ({"format": "tfjs", "quantize": "int8"}, "unknown format tfjs-int8"),
        ({"page": True, "quantize": "int16x8", "integer_io": True}, "no inputs of 16 bits"),
    ],
)
def test_options_that_contradict_each_other(
    image_version: ModelVersion, tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError, match=problem):
        convert(image_version, tmp_path, **options)


def test_only_converted_models_are_replaced(image_version: ModelVersion, tmp_path: Path) -> None:
    target = tmp_path / "converted"
    target.mkdir()
    (target / "mine").write_text("")
    with pytest.raises(AlreadyExistsError, match=r"replace it with --overwrite"):
        convert(image_version, tmp_path)
    with pytest.raises(AlreadyExistsError, match="is no converted model"):
        convert(image_version, tmp_path, overwrite=True)
    assert (target / "mine").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"preparation": {"resize": "area"}}, "the training used area"),
        ({"outputs": "twice"}, "shows one output, the model has scores, scores"),
    ],
)
def test_pages_that_would_show_something_else(
    litert: Conversion, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    if "outputs" in change:
        change = {"outputs": litert.report.outputs * 2}
    with pytest.raises(SpecError, match=problem):
        write_demo_page(tmp_path, litert.report.model_copy(update=change))
    assert list(tmp_path.iterdir()) == []
