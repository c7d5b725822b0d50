"""Documents of a conversion: what is asked of its process, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from timonel.models.schema import Export, StoredDocument

Target = Literal["litert", "tfjs"]
Quantization = Literal["none", "float16", "dynamic", "int8", "int16x8"]
InputLayout = Literal["image", "row", "tensors"]

LABELS_FILE = "labels.txt"
INTEGERS: Sequence[Quantization] = ("int8", "int16x8")
"""Quantizations that compute with integers: calibration finds their ranges."""


def format_id(target: Target, quantization: Quantization) -> str:
    """Return a name for a format, such as ``litert-int8``; ``litert`` has floats."""
    return target if quantization == "none" else f"{target}-{quantization}"


FORMATS: Mapping[str, tuple[Target, Quantization]] = {
    format_id(target, quantization): (target, quantization)
    for target in get_args(Target)
    for quantization in get_args(Quantization)
    # TensorFlow.js computes with floats.
    if not (target == "tfjs" and quantization in INTEGERS)
}


class ConversionRequest(StoredDocument):
    """Request to the process of a conversion."""

    name: str = Field(description="Name and version of the model.")
    saved_model: Path = Field(description="Folder of the SavedModel.")
    output: Path = Field(description="Folder for the files.")
    export: Export | None = Field(default=None, description="Export document, if known.")
    target: Target = Field(description="Format of the files.")
    quantization: Quantization = Field(default="none", description="Numbers of the weights.")
    integer_io: bool = Field(default=False, description="Whether inputs and outputs are integers.")
    dataset: Path | None = Field(default=None, description="Dataset for calibration and accuracy.")
    samples: Path | None = Field(default=None, description="An .npz file of inputs instead.")
    c_header: bool = Field(default=False, description="Whether to write a C header as well.")
    max_accuracy_drop: float | None = Field(
        default=None, description="Largest loss of accuracy, as a share."
    )
    allow_ops: tuple[str, ...] = Field(default=(), description="Trusted operations.")
    op_libraries: tuple[str, ...] = Field(
        default=(), description="Packages and shared libraries with operations of the model."
    )


class TensorFacts(StoredDocument):
    """An input or output of a converted model."""

    name: str = Field(description="Name in the signature.")
    dtype: str = Field(description="Data type.")
    shape: tuple[int, ...] = Field(description="Sizes; axis 0 is the batch, of 1.")
    scale: float | None = Field(default=None, description="Real value of one step of an integer.")
    zero_point: int | None = Field(default=None, description="Integer of the value 0.")


class LayerError(StoredDocument):
    """Error of a layer's output, from quantizing it."""

    layer: str = Field(description="Name of the output tensor.")
    op: str = Field(description="LiteRT's operation.")
    error: float = Field(description="Root mean square error, in steps of its integers.")
    in_float: bool = Field(default=False, description="Whether the layer stayed in float.")


class ConversionComparison(StoredDocument):
    """Predictions of the converted model beside those of the original."""

    examples: int = Field(description="Number of held-out examples.")
    source: str = Field(description="Where they come from.")
    largest_output: float = Field(description="Largest output value of the original.")
    max_difference: float = Field(description="Largest difference of an output value.")
    mean_difference: float = Field(description="Mean difference of an output value.")
    agreement: float | None = Field(default=None, description="Share of equal labels.")
    accuracy: float | None = Field(default=None, description="Share of correct labels.")
    original_accuracy: float | None = Field(
        default=None, description="Share of correct labels of the original."
    )
    error: float | None = Field(default=None, description="Root mean square error of values.")
    original_error: float | None = Field(
        default=None, description="Root mean square error of the original's values."
    )


class WorstExample(StoredDocument):
    """An example whose outputs differ most."""

    key: str = Field(description="Key of the record, or the number of the sample.")
    difference: float = Field(description="Largest difference of an output value.")
    original: tuple[float, ...] = Field(description="The original's scores or values.")
    converted: tuple[float, ...] = Field(description="The converted model's.")
    label: str | None = Field(default=None, description="True label.")
    image_png: str | None = Field(default=None, description="The image as base64 PNG.")


class Timing(StoredDocument):
    """Latency of single requests on this machine."""

    threads: int = Field(description="Threads of the interpreter.")
    runs: int = Field(description="Number of measured runs.")
    p50_ms: float = Field(description="Median, in milliseconds.")
    p99_ms: float = Field(description="99th percentile, in milliseconds.")


class ConversionReport(StoredDocument):
    """What a conversion wrote, and how good it is."""

    target: Target = Field(description="Format of the files.")
    quantization: Quantization = Field(description="Numbers of the weights.")
    model: str = Field(description="Name and version of the original.")
    files: tuple[str, ...] = Field(description="Names of the files.")
    size_bytes: int = Field(description="Size of the converted model.")
    original_bytes: int = Field(description="Size of the original's graph and variables.")
    layout: InputLayout = Field(description="What the input is.")
    preparation: Mapping[str, Any] = Field(
        default_factory=dict, description="What an app does before and after the model."
    )
    inputs: tuple[TensorFacts, ...] = Field(description="Inputs.")
    outputs: tuple[TensorFacts, ...] = Field(description="Outputs.")
    labels: tuple[str, ...] | None = Field(default=None, description="Labels by index of score.")
    comparison: ConversionComparison = Field(description="Comparison of predictions.")
    worst: tuple[WorstExample, ...] = Field(default=(), description="The worst examples.")
    layers: tuple[LayerError, ...] = Field(default=(), description="Errors by layer.")
    timings: tuple[Timing, ...] = Field(default=(), description="Latency by number of threads.")
    arena_bytes: int | None = Field(
        default=None, description="Tensor arena of a microcontroller, if measured."
    )
    peak_bytes: int | None = Field(default=None, description="Memory that inference adds.")
    notes: tuple[str, ...] = Field(default=(), description="Notes for users.")
    versions: Mapping[str, str] = Field(default_factory=dict, description="Packages used.")


def labels_text(labels: Sequence[str]) -> str:
    """Return the text of `LABELS_FILE`: one line for each label, also for one with line breaks."""
    return "".join(f"{' '.join(label.splitlines())}\n" for label in labels)
