"""Process of a conversion: ``python -m timonel.edge.process REQUEST ANSWER``.

The converters leak memory, and some models crash them, so they have a process of their own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from timonel.edge.c_header import HEADER_FILE, measured_arena, write_header
from timonel.edge.comparison import Outputs, accuracy, compare, outputs_of
from timonel.edge.interpreter import LiteModel
from timonel.edge.report import (
    ConversionComparison,
    ConversionReport,
    ConversionRequest,
    LayerError,
)
from timonel.errors import ModelError, SpecError
from timonel.models.child import answer_request, end_with_parent
from timonel.models.exports import simulates_integers
from timonel.models.safety.check import check_saved_model
from timonel.models.safety.op_libraries import allowed_operations
from timonel.storage import write_bytes

if TYPE_CHECKING:
    from timonel.edge.device_model import DeviceModel
    from timonel.edge.samples import Samples
    from timonel.edge.tfjs import TfjsModel

LITERT_FILE = "model.tflite"
_TOLERANCE = 1e-3
"""Largest difference of a float model, relative to its largest output."""
_LAYER_EXAMPLES = 50


def convert(request: ConversionRequest) -> ConversionReport:
    """Convert a SavedModel, and compare the result with it.

    Raises:
        SpecError: The model's inputs, the examples or the options do not fit.
        ModelError: The model could do more than compute, the format cannot express it, or the
            result computes something else.
    """
    allowed = allowed_operations(request.allow_ops, request.op_libraries)
    check_saved_model(request.saved_model, allowed)
    import tensorflow as tf  # noqa: PLC0415 - takes seconds; the request is read first

    from timonel.edge.device_model import load_device_model  # noqa: PLC0415
    from timonel.edge.samples import read_samples  # noqa: PLC0415
    from timonel.edge.tfjs import TfjsModel, write_tfjs  # noqa: PLC0415

    model = load_device_model(request.saved_model, request.export)
    samples = read_samples(request, model)
    # The parent removes it as well, if the converter crashes.
    with tempfile.TemporaryDirectory(dir=request.output) as folder:
        saved = Path(folder, "model")
        model.save(saved)
        # After saving, as a run may change variables; a model that fails is not converted.
        original = outputs_of(model.run, samples.held_out)
        aware = simulates_integers(saved)
        _check_options(request, model, aware=aware)
        if request.target == "tfjs":
            files = write_tfjs(saved, request.output, request.quantization)
            made = _Conversion(TfjsModel(request.output), files, notes=_tfjs_notes(model))
        else:
            made = _litert(request, saved, samples, model, original, aware=aware)
    after = outputs_of(made.model.run, samples.held_out)
    comparison, worst = compare(original, after, samples, model.labels)
    if request.quantization == "none":
        _check_float(comparison)
    size = sum(f.stat().st_size for f in request.saved_model.rglob("*") if _is_model(f))
    return ConversionReport(
        target=request.target,
        quantization=request.quantization,
        model=request.name,
        files=(*made.files, HEADER_FILE) if request.c_header else made.files,
        size_bytes=sum((request.output / name).stat().st_size for name in made.files),
        original_bytes=size,
        layout=model.layout,
        preparation=dict(model.preparation),
        inputs=made.model.inputs,
        outputs=made.model.outputs,
        labels=model.labels,
        comparison=comparison,
        worst=tuple(worst),
        layers=made.layers,
        arena_bytes=_write_header(request) if request.c_header else None,
        notes=made.notes,
        versions={"tensorflow": tf.__version__},
    )


class _Conversion(NamedTuple):
    """What a conversion made: the model, its files in the request's folder, and errors of int8."""

    model: LiteModel | TfjsModel
    files: tuple[str, ...]
    layers: tuple[LayerError, ...] = ()
    notes: tuple[str, ...] = ()


def _tfjs_notes(model: DeviceModel) -> tuple[str, ...]:
    if not any(spec.dtype.name in {"int32", "int64"} for spec in model.specs):
        return ()
    return (
        "integers have 32 bits in TensorFlow.js, and on a GPU they are exact up to 16,777,216 only",
    )


def _litert(
    request: ConversionRequest,
    saved: Path,
    samples: Samples,
    model: DeviceModel,
    original: Outputs,
    *,
    aware: bool,
) -> _Conversion:
    from timonel.edge.device_model import ENCODING, ROW  # noqa: PLC0415
    from timonel.edge.litert import layer_errors, to_litert  # noqa: PLC0415
    from timonel.edge.mixed import keep_accuracy  # noqa: PLC0415

    encoding: list[str] = []

    def converted(in_float: Sequence[str] = ()) -> bytes:
        return to_litert(
            saved,
            request.quantization,
            samples.calibration,
            integer_io=request.integer_io,
            in_float=[*encoding, *in_float],
        )

    def loss(content: bytes) -> float:
        found = outputs_of(LiteModel(content).run, samples.held_out)
        return accuracy(original, samples.held_out) - accuracy(found, samples.held_out)

    content = converted()
    layers: tuple[LayerError, ...] = ()
    notes: tuple[str, ...] = ()
    if aware:
        notes = ("the ranges of integers come from the training",)
    elif request.quantization == "int8" and len(samples.calibration[0]) == 1:
        if model.layout == ROW:
            # The columns of a row have different ranges, and a missing number is no integer.
            names = LiteModel(content).tensor_names
            encoding.extend(name for name in names if name.startswith(f"{ENCODING}/"))
            content = converted()
        layers = layer_errors(saved, samples.calibration[:_LAYER_EXAMPLES], encoding)
        if request.max_accuracy_drop is not None:
            content, layers, notes = keep_accuracy(
                content, layers, converted, loss, request.max_accuracy_drop
            )
    content = _described(content, request, model)
    write_bytes(request.output / LITERT_FILE, content)
    return _Conversion(LiteModel(content), (LITERT_FILE,), layers, notes)


def _write_header(request: ConversionRequest) -> int | None:
    """Write the model as a C header; return the size of its arena in bytes, if it is known."""
    content = (request.output / LITERT_FILE).read_bytes()
    arena_bytes = measured_arena(content)
    write_header(request.output, content, request.name, arena_bytes)
    return arena_bytes


def _described(content: bytes, request: ConversionRequest, model: DeviceModel) -> bytes:
    """Return a flatbuffer that tells apps about its inputs, outputs and labels."""
    from timonel.edge.litert import with_byte_pixels  # noqa: PLC0415
    from timonel.edge.metadata import with_metadata  # noqa: PLC0415

    if request.integer_io and model.layout == "image":
        content = with_byte_pixels(content)
    plain = LiteModel(content)
    return with_metadata(
        content,
        name=request.name,
        layout=model.layout,
        inputs=plain.inputs,
        outputs=plain.outputs,
        labels=model.labels,
    )


def _check_options(request: ConversionRequest, model: DeviceModel, *, aware: bool) -> None:
    """Refuse options that do not fit the model; `timonel.edge.launch` checks the others."""
    bounded = request.max_accuracy_drop is not None
    if aware:
        _check_simulated(request)
    if bounded and not (request.dataset and model.labels):
        raise SpecError(
            "--max-accuracy-drop needs held-out examples with labels, and one output of scores",
            hint="give the dataset with --data, or remove --max-accuracy-drop",
        )
    if model.layout == "row" and (request.integer_io or request.quantization == "int16x8"):
        option = "--integer-io" if request.integer_io else "int16x8"
        raise SpecError(
            f"{option} has one range of integers for a whole row, but columns differ in theirs",
            hint="use --quantize int8 alone, which encodes the row with floats",
        )


def _check_simulated(request: ConversionRequest) -> None:
    """Refuse options that contradict a training with simulated integers."""
    hint = "convert the version before it, or use --format litert --quantize int8"
    trained = "the model was trained with simulated 8-bit integers"
    if request.target == "tfjs":
        # It passes values through, so the browser's outputs would differ from the comparison's.
        raise SpecError(f"{trained}, which TensorFlow.js ignores", hint=hint)
    if request.quantization not in {"none", "int8"}:
        raise SpecError(f"{trained}, so it has no {request.quantization}", hint=hint)
    if request.max_accuracy_drop is not None:
        raise SpecError(
            f"{trained}, but --max-accuracy-drop leaves layers in float", hint="remove it"
        )


def _check_float(comparison: ConversionComparison) -> None:
    if comparison.max_difference > _TOLERANCE * max(1.0, comparison.largest_output):
        raise ModelError(
            "the converted model computes something else: an output differs by "
            f"{comparison.max_difference:.3g}",
            hint="remove random operations and integers beyond 32 bits from the model; without, "
            "report it with the model",
        )


def _is_model(file: Path) -> bool:
    return file.name.startswith(("saved_model.pb", "variables."))


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second."""
    return answer_request(arguments, ConversionRequest, convert)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
