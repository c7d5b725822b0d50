"""Conversions in this process: kinds of models, and what the formats cannot express."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from timonel.data.preprocess import image_batch
from timonel.data.preprocessing import ImagePreprocessing
from timonel.edge import demo_page
from timonel.edge.device_model import load_device_model
from timonel.edge.process import convert
from timonel.edge.report import ConversionReport, ConversionRequest
from timonel.edge.report_page import write_page
from timonel.errors import ModelError, SpecError
from timonel.models import ModelVersion

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    # The converter's calibration uses it.
    pytest.mark.filterwarnings(r"ignore:\s*Warning. tf.lite.Interpreter is deprecated"),
]


def run(saved_model: Path, target: str = "litert", **options: Any) -> ConversionReport:
    output = saved_model.parent / "converted"
    output.mkdir(exist_ok=True)
    request = {"name": "m/1", "saved_model": saved_model, "output": output, "target": target}
    return convert(ConversionRequest.model_validate({**request, **options}))


def convert_version(version: ModelVersion, folder: Path, **options: Any) -> ConversionReport:
    assert version.document is not None
    assert version.document.export is not None
    dataset = version.document.provenance["dataset"]["uri"]
    request = {"name": "m/1", "saved_model": version.path, "output": folder, "dataset": dataset}
    request["export"] = version.document.export.model_dump()
    return convert(ConversionRequest.model_validate({**request, **options}))


def save(function: Callable[..., Any], folder: Path, *specs: Any) -> Path:
    """Save a function of tensors as a SavedModel."""
    import tensorflow as tf

    traced = tf.function(function, input_signature=specs)
    tf.saved_model.save(tf.Module(), str(folder / "model"), signatures=traced)
    return folder / "model"


def floats(*shape: int | None, name: str = "x") -> Any:
    import tensorflow as tf

    return tf.TensorSpec([None, *shape], tf.float32, name)


def test_models_that_use_files_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    def writes(x: Any) -> dict[str, Any]:
        with tf.control_dependencies([tf.io.write_file(str(tmp_path / "written"), "x")]):
            return {"y": 2 * x}

    with pytest.raises(ModelError, match="Safe loading rejects the model: WriteFile writes files"):
        run(save(writes, tmp_path, floats(2)))
    assert not (tmp_path / "written").exists()
    with pytest.raises(ModelError) as caught:  # LiteRT has no such operation
        run(tmp_path / "model", allow_ops=["WriteFile"])
    assert "Safe loading" not in str(caught.value)
    with pytest.raises(ModelError, match="cannot load the op library nowhere"):
        run(tmp_path / "model", op_libraries=["nowhere"])


@pytest.mark.parametrize(
    ("quantize", "difference"), [("float16", 1e-2), ("dynamic", 0.05), ("int16x8", 0.05)]
)
def test_images_to_litert(
    image_version: ModelVersion, tmp_path: Path, quantize: str, difference: float
) -> None:
    report = convert_version(image_version, tmp_path, target="litert", quantization=quantize)
    found = report.comparison
    assert 0 < found.max_difference < difference
    assert found.accuracy == pytest.approx(found.original_accuracy, abs=0.1)
    assert report.size_bytes == (tmp_path / "model.tflite").stat().st_size


def test_integers_at_the_ends(image_version: ModelVersion, tmp_path: Path) -> None:
    options: dict[str, Any] = {"quantization": "int8", "integer_io": True}
    report = convert_version(image_version, tmp_path, target="litert", **options)
    (image,), (scores,) = report.inputs, report.outputs
    assert (image.dtype, image.scale, image.zero_point) == ("uint8", 1, 0)
    assert scores.dtype == "uint8"
    assert report.comparison.max_difference < 0.1


def test_bytes_of_pixels_when_no_example_is_bright(
    image_version: ModelVersion, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).uniform(0, 90, (50, 12, 12, 3))
    np.savez(tmp_path / "dark.npz", image=pixels)
    options: dict[str, Any] = {"quantization": "int8", "integer_io": True, "dataset": None}
    report = convert_version(
        image_version, tmp_path, target="litert", **options, samples=tmp_path / "dark.npz"
    )
    (image,) = report.inputs
    assert (image.dtype, image.scale, image.zero_point) == ("uint8", 1, 0)
    assert report.comparison.max_difference < 0.1


def test_layers_stay_in_float_until_the_accuracy_holds(
    image_version: ModelVersion, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"quantization": "int8", "max_accuracy_drop": 0}
    report = convert_version(image_version, tmp_path, target="litert", **options)
    assert report.comparison.accuracy is not None
    assert report.comparison.original_accuracy is not None
    assert report.comparison.accuracy >= report.comparison.original_accuracy
    (note,) = report.notes
    assert f"{sum(layer.in_float for layer in report.layers)} of" in note
    assert report.layers[0].error >= report.layers[-1].error > 0


@pytest.mark.parametrize(
    ("quantize", "dtype", "difference"),
    [("none", "float32", 1e-5), ("float16", "float16", 1e-2), ("dynamic", "uint8", 0.05)],
)
def test_images_to_tensorflow_js(
    image_version: ModelVersion, tmp_path: Path, quantize: str, dtype: str, difference: float
) -> None:
    report = convert_version(image_version, tmp_path, target="tfjs", quantization=quantize)
    assert report.comparison.max_difference < difference
    model = json.loads((tmp_path / "model.json").read_text())
    assert model["format"] == "graph-model"
    (group,) = model["weightsManifest"]
    kinds = {each.get("quantization", {}).get("dtype", "float32") for each in group["weights"]}
    assert dtype in kinds


def test_data_that_does_not_fit(image_version: ModelVersion, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the dataset has the labels large, small, the model"):
        convert_version(image_version, tmp_path, target="litert", dataset=rows)
    with pytest.raises(SpecError, match=r"is not recorded.*--samples FILE\.npz"):
        convert_version(image_version, tmp_path, target="litert", dataset=rows, export=None)
    with pytest.raises(SpecError, match="int8 needs examples"):
        convert_version(image_version, tmp_path, target="litert", quantization="int8", dataset=None)
    options: dict[str, Any] = {"quantization": "int8", "max_accuracy_drop": 0.01}
    with pytest.raises(SpecError, match="needs held-out examples with labels"):
        convert_version(image_version, tmp_path, target="litert", dataset=None, **options)


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("tfjs", {}, "which TensorFlow.js ignores"),
        ("litert", {"quantization": "float16"}, "so it has no float16"),
        ("litert", {"quantization": "int8", "max_accuracy_drop": 0.1}, "leaves layers in float"),
    ],
)
def test_simulated_integers_contradict(
    tmp_path: Path, target: str, options: dict[str, Any], problem: str
) -> None:
    import tensorflow as tf

    model = save(
        lambda x: {"y": tf.quantization.fake_quant_with_min_max_args(2 * x)}, tmp_path, floats(4)
    )
    with pytest.raises(SpecError, match=problem):
        run(model, target, **options)


@pytest.mark.parametrize("target", ["litert", "tfjs"])
def test_rows_with_gaps_and_words(row_version: ModelVersion, tmp_path: Path, target: str) -> None:
    report = convert_version(row_version, tmp_path, target=target)
    assert report.layout == "row"
    size, colour = report.preparation["columns"]
    assert size == {"name": "size", "kind": "number"}
    assert colour["vocabulary"][0] == ""
    assert sorted(colour["vocabulary"][1:]) == ["blue", "green", "red"]
    assert report.comparison.max_difference < 1e-5
    assert report.comparison.agreement == 1


def test_rows_are_encoded_with_floats(row_version: ModelVersion, tmp_path: Path) -> None:
    report = convert_version(row_version, tmp_path, target="litert", quantization="int8")
    assert report.comparison.max_difference < 0.02
    write_page(tmp_path / "report.html", report)
    page = (tmp_path / "report.html").read_text()
    assert "<th>colour<td>0 unknown, 1 blue, 2 green, 3 red" in page
    assert f"<td>{report.worst[0].key}<td>{report.worst[0].label}<td>" in page
    assert [layer.op for layer in report.layers if "encode" in layer.layer] == []
    for options in ({"quantization": "int8", "integer_io": True}, {"quantization": "int16x8"}):
        with pytest.raises(SpecError, match="one range of integers for a whole row"):
            convert_version(row_version, tmp_path, target="litert", **options)


def test_recurrent_layers(tmp_path: Path) -> None:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    bidirectional = layers.Bidirectional(layers.LSTM(4, return_sequences=True))
    model = keras.Sequential([keras.Input((6, 3)), bidirectional, layers.GRU(4), layers.Dense(2)])
    model.export(str(tmp_path / "model"), verbose=False)
    np.savez(tmp_path / "in.npz", **{model.inputs[0].name: np.random.rand(20, 6, 3)})
    samples = tmp_path / "in.npz"
    for target in ("litert", "tfjs"):
        report = run(tmp_path / "model", target, samples=samples)
        assert report.comparison.max_difference < 1e-5
        assert report.comparison.largest_output > 0.01
        assert report.outputs[0].shape == (1, 2)
    with pytest.raises(ModelError, match="int8 is not possible for loops of recurrent layers"):
        run(tmp_path / "model", quantization="int8", samples=samples)


def test_gelu_in_browsers(tmp_path: Path) -> None:
    import tensorflow as tf

    model = save(lambda x: {"y": tf.nn.gelu(8 * x - 4)}, tmp_path, floats(9))
    report = run(model, "tfjs")
    assert report.comparison.max_difference < 1e-5
    assert '"op":"Erfc"' not in (tmp_path / "converted" / "model.json").read_text()


def test_integers_of_64_bits_in_browsers(tmp_path: Path) -> None:
    import tensorflow as tf

    spec = tf.TensorSpec([None, 4], tf.int64, "x")
    small = save(lambda x: {"y": 7 * x}, tmp_path, spec)
    report = run(small, "tfjs")
    assert report.comparison.max_difference == 0
    assert report.comparison.largest_output == 7
    assert [each.dtype for each in (*report.inputs, *report.outputs)] == ["int32", "int32"]
    assert "integers have 32 bits" in report.notes[0]
    narrow = save(lambda x: {"y": 7 * x}, tmp_path / "narrow", tf.TensorSpec([None], tf.int32, "x"))
    assert run(narrow, "tfjs").notes == report.notes
    np.savez(tmp_path / "large.npz", x=np.full((5, 4), 2_000_000_000))
    with pytest.raises(ModelError, match="computes something else"):
        run(small, "tfjs", samples=tmp_path / "large.npz")
    model = save(lambda x: {"y": 5_000_000_000 * x}, tmp_path / "large", spec)
    with pytest.raises(ModelError, match=r"no integers of 64 bits, but .* holds 5000000000"):
        run(model, "tfjs")


def test_places_that_tensorflow_returns_with_64_bits(tmp_path: Path) -> None:
    import tensorflow as tf

    def largest_first(x: Any) -> dict[str, Any]:
        return {"y": tf.gather_nd(x, tf.where(x >= 0))[::-1], "place": tf.argmax(x, 1)}

    report = run(save(largest_first, tmp_path, floats(4)), "tfjs")
    assert report.comparison.max_difference == 0
    assert {each.name: each.dtype for each in report.outputs} == {"place": "int32", "y": "float32"}


def test_types_that_browsers_lack(tmp_path: Path) -> None:
    import tensorflow as tf

    spec = tf.TensorSpec([None, 4], tf.uint8, "x")
    assert run(save(lambda x: {"y": tf.cast(x, tf.float32)}, tmp_path, spec), "tfjs").inputs
    with pytest.raises(ModelError, match="does not compute with the type uint8"):
        run(save(lambda x: {"y": x + 200}, tmp_path / "sum", spec), "tfjs")


def test_browsers_keep_no_state(tmp_path: Path) -> None:
    import tensorflow as tf

    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), [10.0, 20.0])
    module = tf.Module()
    module.table, module.count = tf.lookup.StaticHashTable(pairs, -1.0), tf.Variable(0.0)
    spec = tf.TensorSpec([None], tf.int64, "x")
    for name, used, function in (
        ("table", "LookupTableFindV2", lambda x: {"y": module.table.lookup(x)}),
        ("count", "AssignAddVariableOp", lambda x: {"y": x, "n": module.count.assign_add(1.0)}),
    ):
        serve = tf.function(function, input_signature=[spec])
        tf.saved_model.save(module, str(tmp_path / name), signatures=serve)
        with pytest.raises(ModelError, match=f"no tables and no variables .* {used}"):
            run(tmp_path / name, "tfjs")


def test_examples_on_which_the_model_fails_end_the_conversion(tmp_path: Path) -> None:
    import tensorflow as tf

    words = tf.random.uniform((3, 2))
    spec = tf.TensorSpec([None, 4], tf.int64, "x")
    np.savez(tmp_path / "in.npz", x=np.full((5, 4), 7))
    model = save(lambda x: {"y": tf.gather(words, x)}, tmp_path, spec)
    with pytest.raises(ModelError, match=r"the model fails on an example: .* is not in"):
        run(model, "tfjs", samples=tmp_path / "in.npz")


def test_labels_belong_to_scores(image_version: ModelVersion) -> None:
    assert image_version.document is not None
    export = image_version.document.export
    assert load_device_model(image_version.path, export).labels == ("bright", "dark")
    tensors = export.meaning.model_copy(update={"task": "tensor"})
    several = export.model_copy(update={"meaning": tensors})
    assert load_device_model(image_version.path, several).labels is None


def recurrent(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential([keras.Input((6, 3)), layers.LSTM(4), layers.Dense(2)])


def causal(keras: Any) -> Any:
    given = keras.Input((6, 3))
    return keras.Model(
        given, keras.layers.MultiHeadAttention(2, 4)(given, given, use_causal_mask=True)
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("make", [recurrent, causal])
def test_the_script_of_the_page_computes_the_same(
    tmp_path: Path, make: Callable[[Any], Any]
) -> None:
    import keras

    keras.utils.set_random_seed(0)
    make(keras).export(str(tmp_path / "model"), verbose=False)
    report = run(tmp_path / "model", "tfjs")
    facts = {
        "model": demo_page._graph_model(tmp_path / "converted", report),
        "size": report.inputs[0].shape[1:],
        "input": report.inputs[0].model_dump(),
    }
    script = f"""
      const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
      const facts = {json.dumps(facts)};
      {demo_page._FILES.joinpath("tfjs.js").read_text()}
      globalThis.tf = require("./tf.js");
      loadModel()
        .then((model) => model.predict(Float32Array.from({{ length: 18 }}, (_, i) => i / 18)))
        .then((values) => console.log("found", JSON.stringify(values)));
    """
    (tmp_path / "tf.js").write_text(demo_page._unpacked("tf.min.js.gz"))
    (tmp_path / "page.js").write_text(script)
    done = subprocess.run(
        ["node", "page.js"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout.rpartition("found ")[2])
    original = load_device_model(tmp_path / "model", None)
    given = (np.arange(18, dtype=np.float32) / 18).reshape(1, 6, 3)
    (expected,) = original.run({original.specs[0].name: given}).values()
    assert found == pytest.approx(expected.ravel().tolist(), abs=1e-5)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("shape", [(40, 52), (23, 31), (90, 61), (11, 80)])
def test_the_page_shrinks_jpegs_as_training_does(tmp_path: Path, shape: tuple[int, int]) -> None:
    import tensorflow as tf

    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (6, 8, 3), np.uint8)
    photo = np.asarray(Image.fromarray(coarse).resize(shape[::-1], Image.Resampling.BICUBIC))
    photo = np.clip(photo + generator.integers(-40, 40, photo.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(photo).save(file, "JPEG", quality=95, subsampling=0)
    spec = ImagePreprocessing(channels=3, height=11, width=12, scale=1.0, shrink_on_load=True)
    expected = image_batch(spec, tf.constant([file.getvalue()])).numpy().ravel()
    facts = {"size": [11, 12, 3], "resize": "bilinear", "shrinks": True}
    element = {"textContent": json.dumps(facts)}
    pixels = np.asarray(Image.open(file).convert("RGBA")).ravel().tolist()
    script = f"""
      const element = {{ ...{json.dumps(element)}, addEventListener() {{}} }};
      globalThis.document = {{ getElementById: () => element }};
      globalThis.window = element;
      globalThis.loadModel = async () => ({{ predict() {{}} }});
      const drawn = {{ drawImage() {{}}, getImageData: () => ({{ data: {json.dumps(pixels)} }}) }};
      globalThis.OffscreenCanvas = class {{ getContext = () => drawn; }};
      {demo_page._FILES.joinpath("page.js").read_text()}
      const found = pixelsOf({{ width: {shape[1]}, height: {shape[0]} }}, true);
      console.log(JSON.stringify(Array.from(found)));
    """
    (tmp_path / "page.js").write_text(script)
    done = subprocess.run(
        ["node", "page.js"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    difference = np.abs(np.array(json.loads(done.stdout)) - expected)
    assert difference.mean() < 3, difference.mean()


def test_nothing_to_quantize(tmp_path: Path) -> None:
    spec = floats(4)
    np.savez(tmp_path / "in.npz", x=np.random.rand(5, 4))
    report = run(
        save(lambda x: {"y": x > 0.5}, tmp_path, spec),
        quantization="int8",
        samples=tmp_path / "in.npz",
    )
    assert report.outputs[0].dtype == "bool"


@pytest.mark.parametrize("target", ["litert", "tfjs"])
def test_missing_operations_are_named_with_their_places(tmp_path: Path, target: str) -> None:
    import tensorflow as tf

    def serve(x: Any) -> dict[str, Any]:
        inverse = tf.linalg.inv(x + tf.eye(4), name="inverse")
        return {"y": tf.raw_ops.Betainc(a=inverse, b=x, x=x, name="beta")}

    with pytest.raises(ModelError) as raised:
        run(save(serve, tmp_path, floats(4, 4)), target)
    assert "no operation Betainc (at beta), MatrixInverse (at inverse)" in raised.value.message
    assert "Flex" not in str(raised.value.hint), "it has no such operation either"


def test_random_operations_are_named_for_the_browser(tmp_path: Path) -> None:
    import tensorflow as tf

    def serve(x: Any) -> dict[str, Any]:
        return {"y": x + tf.random.normal((4,), seed=1, name="noise")}

    with pytest.raises(ModelError) as raised:
        run(save(serve, tmp_path, floats(4)), "tfjs")
    assert "RandomStandardNormal (at noise/RandomStandardNormal)" in raised.value.message


def test_bands_of_matrices_that_are_no_constants_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    model = save(lambda x: {"y": tf.linalg.band_part(x, -1, 0)}, tmp_path, floats(4, 4))
    with pytest.raises(ModelError, match="has no operation MatrixBandPart"):
        run(model, "tfjs")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_cumulative_sums_over_the_last_axis(tmp_path: Path) -> None:
    import tensorflow as tf

    def serve(x: Any) -> dict[str, Any]:
        return {"y": tf.cumsum(x, -1, reverse=True) + tf.math.cumprod(x, axis=-2)}

    run(save(serve, tmp_path, floats(3, 4)), "tfjs")
    x = np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32)
    script = gzip.decompress(demo_page._FILES.joinpath("tf.min.js.gz").read_bytes())
    (tmp_path / "tf.js").write_bytes(script)
    (tmp_path / "page.js").write_text(
        f"""
        globalThis.tf = require("./tf.js");
        const read = (name) => require("fs").readFileSync("converted/" + name);
        const model = JSON.parse(read("model.json"));
        const {{ modelTopology, signature, weightsManifest: [group] }} = model;
        const weightData = new Uint8Array(read(group.paths[0])).buffer;
        const parts = {{ modelTopology, signature, weightSpecs: group.weights, weightData }};
        tf.loadGraphModel(tf.io.fromMemory(parts)).then((model) => {{
          const found = model.execute(tf.tensor({x.ravel().tolist()}, [1, 3, 4]));
          console.log(JSON.stringify(Array.from(found.dataSync())));
        }});
        """
    )
    done = subprocess.run(
        ["node", "page.js"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    found = np.array(json.loads(done.stdout.splitlines()[-1])).reshape(1, 3, 4)
    expected = np.cumsum(x[..., ::-1], -1)[..., ::-1] + np.cumprod(x, -2)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_operations_that_apps_could_add(tmp_path: Path) -> None:
    import tensorflow as tf

    model = save(lambda x: {"y": tf.linalg.inv(x)}, tmp_path, floats(4, 4))
    with pytest.raises(ModelError, match="SELECT_TF_OPS, for apps with the Flex delegate"):
        run(model)


@pytest.mark.parametrize("target", ["litert", "tfjs"])
def test_float64_is_refused(tmp_path: Path, target: str) -> None:
    import tensorflow as tf

    spec = tf.TensorSpec([None, 4], tf.float64, "x")
    with pytest.raises(ModelError, match=r"float64.*compute with float32"):
        run(save(lambda x: {"y": tf.sqrt(x) * 3}, tmp_path, spec), target)


def test_signatures_that_do_not_fit(tmp_path: Path) -> None:
    import tensorflow as tf

    text = tf.TensorSpec([None, 4], tf.string, "x")
    cases: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        ("has the shape (8, 4)", lambda x: {"y": x}, (tf.TensorSpec([8, 4], tf.float32, "x"),)),
        ("has the shape ()", lambda x: {"y": x}, (tf.TensorSpec([], tf.float32, "x"),)),
        ("need fixed sizes", lambda x: {"y": x}, (floats(None, 3),)),
        ("'x' holds string", lambda x: {"y": tf.strings.length(x)}, (text,)),
        ("'y' holds strings", lambda x: {"y": tf.as_string(x)}, (floats(4),)),
        ("has no inputs", lambda: {"y": tf.constant(1.0)}, ()),
    ]
    for number, (problem, function, specs) in enumerate(cases):
        with pytest.raises(SpecError) as raised:
            run(save(function, tmp_path / str(number), *specs))
        assert problem in raised.value.message


def test_damaged_models(tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.weights = tf.Variable(np.ones((4, 50), np.float32))
    serve = tf.function(lambda x: {"y": x @ module.weights}, input_signature=[floats(4)])
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    (data,) = (tmp_path / "model" / "variables").glob("*.data-*")
    graph = tmp_path / "model" / "saved_model.pb"
    for file, size, message in (
        (data, 100, r"cannot load .*model: "),
        (graph, 1000, r"model cannot be read: Error parsing message"),
    ):
        with file.open("rb+") as opened:
            opened.truncate(size)
        with pytest.raises(ModelError, match=message):
            run(tmp_path / "model")


@pytest.mark.parametrize("target", ["litert", "tfjs"])
def test_outputs_that_cannot_be_compared(tmp_path: Path, target: str) -> None:
    import tensorflow as tf

    np.savez(tmp_path / "in.npz", x=[[-1.0, 2.0], [1.0, 2.0]])
    samples = tmp_path / "in.npz"
    model = save(lambda x: {"y": tf.boolean_mask(x, x > 0)}, tmp_path / "mask", floats(2))
    with pytest.raises(ModelError, match="size of an output depends on the input"):
        run(model, target, samples=samples)
    model = save(lambda x: {"y": tf.math.log(x)}, tmp_path / "log", floats(2))
    with pytest.raises(ModelError, match="original's output for example 0 is not a finite number"):
        run(model, target, samples=samples)


def test_float16_that_overflows(tmp_path: Path) -> None:
    import tensorflow as tf

    weights = np.full((64, 64), 1e6, np.float32)
    model = save(lambda x: {"y": tf.matmul(x, weights)}, tmp_path, floats(64))
    with pytest.raises(ModelError, match=r"converted model's output .* use another --quantize"):
        run(model, "tfjs", quantization="float16")


def test_samples_that_do_not_fit(tmp_path: Path) -> None:
    import tensorflow as tf

    model = save(
        lambda x, n: {"y": x + tf.cast(n, tf.float32)},
        tmp_path,
        floats(2),
        tf.TensorSpec([None, 2], tf.int32, "n"),
    )
    good = {"x": np.zeros((3, 2)), "n": np.arange(6).reshape(3, 2)}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("holds x, the model takes", {"x": good["x"]}),
        ("different numbers of rows", {**good, "n": good["n"][:1]}),
        ("has rows of shape", {**good, "x": np.zeros((3, 5))}),
        ("n in .* holds float64, the model takes int32", {**good, "n": good["n"] + 0.5}),
        ("x in .* holds <U1, the model takes float32", {**good, "x": np.full((3, 2), "a")}),
    ]
    for problem, arrays in cases:
        np.savez(tmp_path / "in.npz", **arrays)
        with pytest.raises(SpecError, match=problem):
            run(model, samples=tmp_path / "in.npz")
    np.savez(tmp_path / "in.npz", **good)
    assert run(model, samples=tmp_path / "in.npz").comparison.largest_output == 5
