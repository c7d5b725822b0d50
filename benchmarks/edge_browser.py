"""A model in Chromium: load time and time per image with LiteRT.js and TensorFlow.js.

The model is the network for cats and dogs, trained for one epoch on the given images, or on
handwritten digits drawn at its size. Needs the packages of ``make test-browser``.

usage: edge_browser.py [--images FOLDER] [--quick] [--output benchmarks/results/edge_browser.md]
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import _parts
from _inputs import two_kinds_of_jpegs
from _jobs import SCRIPTS, run_command
from _parts import Document
from _rows import Found, Row

HERE = Path(__file__).parent
PARTS = {
    "float32": {"litert": "none", "tfjs": "none"},
    "weights of 8 bits": {"litert": "int8", "tfjs": "dynamic"},
}
"""The quantization of each runtime's model, by part."""
_RENDERER = """() => {
  const context = new OffscreenCanvas(1, 1).getContext("webgl");
  const names = context.getExtension("WEBGL_debug_renderer_info");
  return context.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : context.RENDERER);
}"""
_ROUNDS = 5
_IMAGES = 10
_TIME_IMAGES = """async (count) => {
  const photo = new OffscreenCanvas(640, 480);
  photo.getContext("2d").fillRect(100, 100, 200, 300);
  const found = [];
  for (let i = 0; i < count; i++) {
    const started = performance.now();
    await classify(photo);
    found.push(performance.now() - started);
  }
  return found;
}"""


def train(folder: Path, images: Path | None) -> None:
    """Train the network, and publish it as ``catsdogs`` in the folder's workspace."""
    images = images or two_kinds_of_jpegs(folder / "images", 400)
    run_command(folder, "convert", str(images), "data")
    run_command(folder, "train", str(SCRIPTS / "cats_and_dogs_loaded.py"), "--data", "data")
    run_command(folder, "export", "--name", "catsdogs")


def measure_part(folder: Path, quantizations: Mapping[str, str], *, quick: bool) -> Found:
    """Open the page of each runtime in turn."""
    from playwright.sync_api import sync_playwright

    pages = {target: _page(folder, target, how) for target, how in quantizations.items()}
    loads: dict[str, list[float]] = {target: [] for target in pages}
    images: dict[str, list[float]] = {target: [] for target in pages}
    runtimes: dict[str, str] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=os.environ.get("TIMONEL_BROWSER") or shutil.which("chromium"),
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        for _round in range(1 if quick else _ROUNDS):
            for target, page in pages.items():
                load_ms, times, runtimes[target] = _opened(browser, page, 3 if quick else _IMAGES)
                loads[target].append(load_ms)
                images[target].append(statistics.median(times))
        version = browser.version
        renderer = browser.new_page().evaluate(_RENDERER)
        browser.close()
    numbers = {each: how.replace("none", "float32") for each, how in quantizations.items()}
    ours, rival = (f"{runtimes[each]} ({numbers[each]})" for each in ("litert", "tfjs"))
    sizes = {target: page.stat().st_size / 1e6 for target, page in pages.items()}
    return Found(
        [
            Row(f"load, {ours}", "ms", loads["litert"], loads["tfjs"], rival),
            Row(f"image, {ours}", "ms", images["litert"], images["tfjs"], rival),
        ],
        [
            (
                f"Size of the page: {sizes['litert']:.1f} MB with {ours}, {sizes['tfjs']:.1f} MB "
                f"with {rival}. Chromium {version}; WebGL is computed by {renderer}."
            )
        ],
        {"load_ms": loads, "image_ms": images},
    )


def _page(folder: Path, target: str, quantization: str) -> Path:
    output = folder / f"{target}-{quantization}"
    run_command(
        folder, "models", "convert", "catsdogs", "--format", target, "--quantize", quantization,
        "--page", "--output", str(output),
    )  # fmt: skip
    return output / "demo.html"


def _opened(browser: Any, file: Path, count: int) -> tuple[float, list[float], str]:
    """Return the load time, the times per image, and the runtime's name."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(file.as_uri())
    load_ms = page.evaluate("loading.then(() => performance.now())")
    times = page.evaluate(_TIME_IMAGES, count)
    runtime = page.evaluate("loading.then((model) => model.runtime)")
    context.close()
    return load_ms, times, runtime


def main() -> None:
    """Measure, and write and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help="images to train on, in a folder per label")
    parser.add_argument("--quick", action="store_true", help="try it out: one round, not written")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "edge_browser.md")
    options = parser.parse_args()
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TIMONEL_MIRRORS="none")
    _parts.run(
        measure(options.images, quick=options.quick),
        order=PARTS,
        report=report,
        output=options.output,
        keep=False,
        written=not options.quick,
    )


def measure(images: Path | None, *, quick: bool) -> Iterator[tuple[str, Document]]:
    """Measure all parts; yield each with its result or its failure."""
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as scratch:
        folder = Path(scratch)
        train(folder, images.absolute() if images else None)
        for name, quantizations in PARTS.items():
            part = functools.partial(measure_part, folder, quantizations, quick=quick)
            yield name, _parts.measure_part(name, part)


def report(parts: Mapping[str, Document]) -> str:
    """Return the results as a Markdown page."""
    intro = (
        f'Measured {_parts.measured_at(parts)}, load {_parts.loads(parts)}. "Load" is the time '
        'from opening the page to the first prediction, "image" that of a camera\'s picture of '
        f"640 x 480 pixels with resizing. Medians of {_ROUNDS} rounds in turn; the ratio is the "
        "median of the ratios of the pairs, LiteRT.js divided by TensorFlow.js. LiteRT.js computes "
        "on one core. SwiftShader computes WebGL on all cores: a GPU would be faster."
    )
    lines = ["# Models in the browser", "", intro, "", *_parts.table(parts)]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in _parts.remarks(parts)), ""])


if __name__ == "__main__":
    main()
