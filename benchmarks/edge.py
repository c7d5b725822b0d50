"""LiteRT models by timonel beside the plain recipes of TensorFlow's converter.

Three models: a small network for digits, the network for cats and dogs, and MobileNetV2. The plain
recipe converts the same version's ``tensor`` signature as TensorFlow's guide does.

usage: edge.py [--only PART ...] [--images FOLDER] [--quick] [--output benchmarks/results/edge.md]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _parts
import numpy as np
from _inputs import digit_folders, two_kinds_of_jpegs
from _jobs import SCRIPTS, run_command
from _parts import Document
from _rows import Found, Row

HERE = Path(__file__).parent
FORMATS = ("none", "float16", "dynamic", "int8")
_ROUNDS = 5
_CALIBRATION = 200


@dataclass(frozen=True)
class Model:
    """A model of the benchmark.

    Attributes:
        kind: Which one of ``scripts/edge_models.py``.
        side: Pixels of its images.
        epochs: Epochs of training.
        is_digits: Whether it learns digits instead of the given images.
        aware: Epochs of quantization-aware training; 0 for none.
    """

    kind: str
    side: int
    epochs: int
    is_digits: bool = False
    aware: int = 0


PARTS = {
    "digits": Model("cnn", 16, 6, is_digits=True),
    "cats and dogs": Model("deep", 150, 20),
    "MobileNetV2": Model("mobilenet", 64, 12, is_digits=True, aware=3),
}


def measure_part(name: str, images: Path | None, *, quick: bool) -> Found:
    """Train a model, convert it in both ways, and compare."""
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as scratch:
        folder, model = Path(scratch), PARTS[name]
        _train(folder, model, images, quick=quick)
        return _compare(folder, name, quick=quick)


def _train(folder: Path, model: Model, images: Path | None, *, quick: bool) -> None:
    if model.is_digits:
        source = digit_folders(folder / "images", model.side)
    else:
        source = images or two_kinds_of_jpegs(folder / "images", 1000)
    run_command(folder, "convert", str(source), "data")
    settings = {
        "model": model.kind, "side": model.side, "epochs": 1 if quick else model.epochs
    }  # fmt: skip
    chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    script = str(SCRIPTS / "edge_models.py")
    run_command(folder, "train", script, "--data", "data", "--seed", "1", *chosen)
    run_command(folder, "export", "--name", "model")
    if model.aware:
        run_command(folder, "train", "--quantize-aware", "last", "--set", f"epochs={model.aware}")
        run_command(folder, "export", "--name", "aware")


def _compare(folder: Path, name: str, *, quick: bool) -> Found:
    from timonel.edge.interpreter import LiteModel

    found = Found()
    held_out, truth = _examples(folder, "test")
    calibration, _ = _examples(folder, "train", _CALIBRATION)
    aware: float | None = None
    for how in FORMATS:
        report, ours = _converted(folder, "model", how)
        plain = folder / f"plain-{how}.tflite"
        plain.write_bytes(_plain(folder / ".timonel" / "models" / "model" / "1", how, calibration))
        scores = [
            next(iter(LiteModel(plain).run({_input(plain): x[None]}).values())) for x in held_out
        ]
        accuracy = float(np.mean(np.concatenate(scores).argmax(1) == truth))
        latency = _latencies(ours, plain, 1 if quick else _ROUNDS)
        rival = f"TFLiteConverter, {how}"
        label = f"{name}, {how}"
        found.rows += [
            Row(f"{label}: size", "kB", [ours.stat().st_size / 1e3], [plain.stat().st_size / 1e3],
                rival, most=1.02),
            Row(f"{label}: latency", "ms", *latency, rival, most=1.05),
            Row(f"{label}: accuracy", "%", [100 * report["comparison"]["accuracy"]],
                [100 * accuracy], rival, least=0.995),
        ]  # fmt: skip
        if how == "int8" and PARTS[name].aware:
            aware_report, _ = _converted(folder, "aware", how)
            aware = aware_report["comparison"]["accuracy"]
            found.rows.append(
                Row(f"{name}, trained for int8: accuracy", "%", [100 * aware], [100 * accuracy],
                    rival, least=1.0)
            )  # fmt: skip
        original = report["comparison"]["original_accuracy"]
        found.data[how] = {"original_accuracy": original, "examples": len(truth)}
    remark = f"{name}: the original's accuracy is {original:.1%} on {len(truth)} held-out images."
    if aware is not None:
        remark += " Training for int8 is further training as well: it adds 3 epochs."
    found.remarks.append(remark)
    return found


def _converted(folder: Path, name: str, how: str) -> tuple[dict[str, Any], Path]:
    output = folder / f"{name}-{how}"
    run_command(folder, "models", "convert", name, "--quantize", how, "--output", str(output))
    return json.loads((output / "report.json").read_text()), output / "model.tflite"


def _plain(version: Path, how: str, calibration: Any) -> bytes:
    """Convert as TensorFlow's guide to post-training quantization does."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(str(version), signature_keys=["tensor"])
    if how != "none":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if how == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if how == "int8":
        converter.representative_dataset = lambda: ([image[None]] for image in calibration)
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS_INT8, tf.lite.OpsSet.TFLITE_BUILTINS
        ]  # fmt: skip
    return bytes(converter.convert())


def _latencies(ours: Path, plain: Path, rounds: int) -> tuple[list[float], list[float]]:
    from timonel.edge.interpreter import MeasureRequest, measure

    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            request = MeasureRequest(model=(ours, plain)[side], threads=(1,))
            found[side].append(measure(request).timings[0].p50_ms)
    return found


@functools.cache
def _input(model: Path) -> str:
    from timonel.edge.interpreter import LiteModel

    return LiteModel(model).inputs[0].name


def _examples(folder: Path, split: str, count: int | None = None) -> tuple[Any, Any]:
    """Return images as they enter the model, and their labels."""
    from timonel.data import load
    from timonel.data.preprocessing import load_options, parse_preprocessing
    from timonel.models import ModelRepository

    document = ModelRepository(folder / ".timonel" / "models").resolve("model").document
    transforms = parse_preprocessing(dict(document.export.preparation.transforms))
    batches = list(load(folder / "data", split=split, shuffle=False, **load_options(transforms)))
    images, labels = (
        np.concatenate([np.asarray(each[side]) for each in batches]) for side in (0, 1)
    )
    return images[:count], labels[:count]


def main() -> None:
    """Measure, and write and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART",
                        help=", ".join(PARTS))  # fmt: skip
    parser.add_argument("--images", type=Path, help="images to train on, in a folder per label")
    parser.add_argument("--quick", action="store_true", help="try it out: one epoch, not written")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "edge.md")
    options = parser.parse_args()
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TIMONEL_MIRRORS="none")
    images = options.images.absolute() if options.images else None
    _parts.run(
        measure(options.only or list(PARTS), images, quick=options.quick),
        order=PARTS,
        report=report,
        output=options.output,
        keep=bool(options.only),
        written=not options.quick,
    )


def measure(
    names: Sequence[str], images: Path | None, *, quick: bool
) -> Iterator[tuple[str, Document]]:
    """Measure parts; yield each with its result or its failure."""
    for name in names:
        part = functools.partial(measure_part, name, images, quick=quick)
        yield name, _parts.measure_part(name, part)


def report(parts: Mapping[str, Document]) -> str:
    """Return the results as a Markdown page."""
    intro = (
        f"Measured {_parts.measured_at(parts)}, load {_parts.loads(parts)}. Latency is the median "
        f"of single requests with one thread, in {_ROUNDS} rounds in turn. timonel's files hold "
        "metadata and scale the pixels themselves; those of the plain recipes take scaled pixels."
    )
    lines = ["# LiteRT models", "", intro, "", *_parts.table(parts)]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in _parts.remarks(parts)), ""])


if __name__ == "__main__":
    main()
