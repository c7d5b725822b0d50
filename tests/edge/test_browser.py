"""Pages with models in a real browser: `make test-browser`."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from timonel.edge import Conversion, convert_version
from timonel.edge.demo_page import write_demo_page
from timonel.edge.interpreter import LiteModel
from timonel.models import ModelVersion

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CLASSIFY = """async (images) => {
  const found = [];
  for (const image of images) found.push(await classifyFile(new File([bytes(image)], "image")));
  return found;
}"""
WITHOUT_WEBGPU = "delete Navigator.prototype.gpu"


@pytest.fixture(scope="module")
def held_out() -> list[bytes]:
    """100 images that the model never saw, smaller and larger than its input."""
    generator = np.random.default_rng(1)
    images = []
    for number in range(100):
        height, width = generator.integers(5, 60, 2)
        mean = (80, 170)[number % 2]
        pixels = np.clip(generator.normal(mean, 60, (height, width, 3)), 0, 255)
        images.append(png(pixels))
    return images


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def converted(
    image_version: ModelVersion, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Conversion]:
    """Converts with a page, each combination of options once."""

    @functools.cache
    def convert(**options: Any) -> Conversion:
        folder = tmp_path_factory.mktemp("converted") / "made"
        return convert_version(image_version, page=True, output=str(folder), **options)

    return convert


@contextlib.contextmanager
def opened(browser: Any, made: Conversion, script: str = "") -> Iterator[Any]:
    """Open a page whose model is loaded; it fails if the page has errors or loads anything."""
    from playwright.sync_api import expect

    page = browser.new_page()
    requested: list[str] = []
    problems: list[str] = []
    page.on("request", lambda each: requested.append(each.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    if script:
        page.add_init_script(script)
    url = (made.folder / "demo.html").absolute().as_uri()
    page.goto(url)
    expect(page.locator("#state")).to_contain_text("Ready", timeout=120_000)
    yield page
    page.close()
    assert problems == []
    assert requested == [url]


def classified(page: Any, images: list[bytes]) -> Any:
    return np.array(page.evaluate(CLASSIFY, [base64.b64encode(each).decode() for each in images]))


@pytest.mark.parametrize(
    "case",
    [
        ("tfjs", "none", 1e-4, "TensorFlow.js"),
        ("tfjs", "float16", 1e-2, "TensorFlow.js"),
        ("litert", "none", 1e-4, "LiteRT.js, WebAssembly"),
        ("litert", "none", 1e-4, "LiteRT.js, WebGPU"),
        ("litert", "float16", 1e-2, "LiteRT.js, WebAssembly"),
    ],
)
def test_the_page_predicts_what_the_original_does(
    browser: Any,
    image_version: ModelVersion,
    held_out: list[bytes],
    converted: Callable[..., Conversion],
    case: tuple[Any, Any, float, str],
) -> None:
    import tensorflow as tf

    target, quantize, difference, runtime = case
    made = converted(format=target, quantize=quantize)
    serve = tf.saved_model.load(str(image_version.path)).signatures["serving_default"]
    expected = serve(tf.constant(held_out))["scores"].numpy()
    assert len(expected) == 100
    with opened(browser, made, "" if "WebGPU" in runtime else WITHOUT_WEBGPU) as page:
        if "WebGPU" in runtime and not page.evaluate("litert.getWebGpuDevice() !== null"):
            pytest.skip("this browser has no WebGPU")
        assert runtime in page.inner_text("#state")
        assert np.abs(classified(page, held_out) - expected).max() < difference


@pytest.mark.parametrize("integer_io", [False, True])
def test_integers_in_litert(
    browser: Any,
    held_out: list[bytes],
    converted: Callable[..., Conversion],
    integer_io: bool,
) -> None:
    import tensorflow as tf

    made = converted(quantize="int8", integer_io=integer_io)
    model = LiteModel(made.folder / "model.tflite")
    expected = [
        model.run({"image": tf.image.resize(tf.io.decode_png(each), (12, 12))[None].numpy()})
        for each in held_out
    ]
    with opened(browser, made) as page:
        found = classified(page, held_out)
    assert np.abs(found - np.concatenate([each["scores"] for each in expected])).max() < 1e-4


def test_images_are_resized_like_the_training_data(
    browser: Any, converted: Callable[..., Conversion]
) -> None:
    import tensorflow as tf

    generator = np.random.default_rng(2)
    shapes = ((12, 12), (13, 11), (1, 1), (5, 40), (333, 200), (640, 7))
    resize = """([method, data, height, width]) => {
      facts.resize = method;
      return Array.from(resized(data, width, height));
    }"""
    with opened(browser, converted(format="litert", quantize="none")) as page:
        for method, shape in itertools.product(("bilinear", "nearest"), shapes):
            pixels = generator.integers(0, 256, (*shape, 4), np.uint8)
            expected = tf.image.resize(pixels[..., :3], (12, 12), method=method).numpy()
            found = page.evaluate(resize, [method, pixels.ravel().tolist(), *shape])
            np.testing.assert_array_equal(found, expected.ravel(), f"{method} {shape}")


@pytest.mark.parametrize("target", ["litert", "tfjs"])
def test_files_and_the_camera(
    browser: Any, converted: Callable[..., Conversion], tmp_path: Path, target: Any
) -> None:
    from playwright.sync_api import expect

    made = converted(format=target, quantize="none")
    photo, text = tmp_path / "photo.png", tmp_path / "text.png"
    photo.write_bytes(png(np.full((20, 40, 3), 250)))
    text.write_text("no image")
    with opened(browser, made) as page:
        page.set_input_files("#file", photo)
        expect(page.locator(".score span").first).to_have_text("bright")
        assert page.locator(".score").count() == 2
        page.set_input_files("#file", text)
        expect(page.locator("#state")).to_contain_text("text.png cannot be read as an image")
        page.click("#camera")
        expect(page.locator("#state")).to_contain_text(" ms (")
        assert page.evaluate("picture.width > 40"), "the camera's picture"
        page.click("#camera")
        assert page.evaluate("camera === null")


def test_labels_are_only_text(
    browser: Any, converted: Callable[..., Conversion], held_out: list[bytes], tmp_path: Path
) -> None:
    made = converted(format="litert", quantize="none")
    labels = ("</script><!--<script>", "<b>second</b>")
    report = made.report.model_copy(update={"labels": labels})
    shutil.copy(made.folder / "model.tflite", tmp_path)
    write_demo_page(tmp_path, report)
    with opened(browser, Conversion(tmp_path, report)) as page:
        classified(page, held_out[:1])
        names = page.locator(".score span:first-child").all_inner_texts()
    assert set(names) == set(labels)
