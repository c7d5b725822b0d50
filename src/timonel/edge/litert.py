"""LiteRT flatbuffers of a device's model, with quantized weights. TensorFlow processes only."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

from timonel.edge.report import INTEGERS, LayerError, Quantization
from timonel.edge.samples import Inputs
from timonel.errors import ModelError, SpecError
from timonel.models.exports import simulates_integers
from timonel.models.signatures import SERVING

_UNSUPPORTED = re.compile(
    r"'tf\.(\w+)' op is neither|^(?:TF Select|Custom) ops: ([\w, ]+)"
    r"|op(?:eration)? '(?:tf\.)?(\w+)'"
)
_PLACE = re.compile(r'loc\((?:callsite\()?(?:fused\["\w*:", )?"([^"@]+)')


def to_litert(
    saved_model: Path,
    quantization: Quantization,
    calibration: Sequence[Inputs] = (),
    *,
    integer_io: bool = False,
    in_float: Sequence[str] = (),
) -> bytes:
    """Convert a SavedModel with one signature to a flatbuffer.

    Args:
        saved_model: The SavedModel; its batch is fixed.
        quantization: Numbers of the weights and, with ``int8`` and ``int16x8``, of what layers
            pass on.
        integer_io: Whether inputs and outputs are integers as well.
        in_float: Layers of an ``int8`` model with one input that stay in float, by the names of
            their outputs.
    """
    if quantization in INTEGERS and not calibration and not simulates_integers(saved_model):
        raise SpecError(
            f"--quantize {quantization} needs examples, from which it learns the ranges of values",
            hint="give the training data with --data, or inputs with --samples FILE.npz",
        )
    if quantization in INTEGERS and _has_lists(saved_model):
        raise ModelError(
            f"{quantization} is not possible for loops of recurrent layers: the converter cannot "
            "run them to learn the ranges of values",
            hint="use --quantize dynamic, or unroll=True in the layers",
        )
    converter = _converter(saved_model, quantization, calibration, integer_io=integer_io)
    with _conversion_errors():
        if not in_float:
            return bytes(converter.convert())
        debugger = _debugger(converter, calibration, in_float, integer_io=integer_io)
        return bytes(debugger.get_nondebug_quantized_model())


def with_byte_pixels(content: bytes) -> bytes:
    """Let a model with integers at its ends take pixels as bytes, from 0 to 255.

    The converter's range ends at the brightest pixel of the examples. The model's first operation
    turns bytes into its own integers: it takes any range.
    """
    model = schema.ModelT.InitFromPackedBuf(bytearray(content), 0)
    graph = model.subgraphs[0]
    given = graph.tensors[graph.inputs[0]]
    if given.type != schema.TensorType.UINT8:
        return content
    given.quantization.scale, given.quantization.zeroPoint = [1.0], [0]
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def layer_errors(
    saved_model: Path, calibration: Sequence[Inputs], in_float: Sequence[str] = ()
) -> tuple[LayerError, ...]:
    """Return the errors of the layers of an int8 model, largest first.

    The error of a layer is the root mean square of the difference to its float output, in steps of
    its integers: 0.29 is the error of rounding alone. The model has one input. Empty if no layer
    computes with integers.
    """
    converter = _converter(saved_model, "int8", calibration, integer_io=False)
    table = io.StringIO()
    with _conversion_errors(), contextlib.redirect_stdout(io.StringIO()):
        try:
            debugger = _debugger(converter, calibration, in_float, integer_io=False)
        except ValueError as error:
            if "in debug mode" not in str(error):
                raise
            return ()
        debugger.run()
        debugger.layer_statistics_dump(table)
    table.seek(0)
    found = [
        LayerError(
            layer=row["tensor_name"],
            op=row["op_name"],
            error=float(row["mean_squared_error"]) ** 0.5 / float(row["scale"]),
        )
        for row in csv.DictReader(table)
        if float(row["scale"]) > 0
    ]
    return tuple(sorted(found, key=lambda layer: -layer.error))


def _has_lists(saved_model: Path) -> bool:
    """Whether a model has lists of tensors: TensorFlow 2.21 crashes when it calibrates these."""
    graph = tf.saved_model.load(str(saved_model)).signatures[SERVING].graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(each.node_def for each in graph.library.function))
    return any(node.op == "TensorListReserve" for node in nodes)


def _converter(
    saved_model: Path,
    quantization: Quantization,
    calibration: Sequence[Inputs],
    *,
    integer_io: bool,
) -> Any:
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model))
    if quantization == "none":
        return converter
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantization in INTEGERS:
        if calibration:
            converter.representative_dataset = lambda: iter(calibration)
        sets = tf.lite.OpsSet
        integers = {
            "int8": sets.TFLITE_BUILTINS_INT8,
            "int16x8": sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
        }[quantization]
        # Operations without an integer kernel stay in float, unless everything must be integers.
        only = integer_io and quantization == "int8"
        converter.target_spec.supported_ops = (
            [integers] if only else [integers, sets.TFLITE_BUILTINS]
        )
        if integer_io:
            # Apps have pixels as bytes.
            kind = tf.uint8 if quantization == "int8" else tf.int16
            converter.inference_input_type = converter.inference_output_type = kind
    return converter


def _debugger(
    converter: Any, calibration: Sequence[Inputs], in_float: Sequence[str], *, integer_io: bool
) -> Any:
    return tf.lite.experimental.QuantizationDebugger(
        converter=converter,
        # Of one input, as it takes them by position.
        debug_dataset=lambda: ([next(iter(inputs.values()))] for inputs in calibration),
        debug_options=tf.lite.experimental.QuantizationDebugOptions(
            denylisted_nodes=list(in_float), fully_quantize=integer_io
        ),
    )


@contextlib.contextmanager
def _conversion_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The converter raises whatever its passes raise, with pages of MLIR.
        raise _explained(str(error)) from error


def _explained(text: str) -> ModelError:
    places: dict[str, str] = {}
    for line in text.splitlines():
        place = _PLACE.search(line)
        for match in _UNSUPPORTED.finditer(line):
            for name in next(filter(None, match.groups())).split(","):
                places.setdefault(name.strip(), f" (at {place[1]})" if place else "")
    if not places:
        first = next((line for line in text.splitlines() if line.strip()), "no message")
        return ModelError(f"LiteRT cannot convert the model: {first.strip()[:300]}")
    found = ", ".join(f"{name}{place}" for name, place in sorted(places.items()))
    if "xf64>" in text:
        return ModelError(
            f"LiteRT has no operation {found} for float64", hint="compute with float32 in the model"
        )
    hint = "replace the layer that uses it, or do this step in the app"
    if "Custom ops:" not in text:
        hint += (
            "; TensorFlow's converter allows it with SELECT_TF_OPS, for apps with the Flex delegate"
        )
    return ModelError(f"LiteRT has no operation {found}", hint=hint)
