"""Documents about a model: export, check result, published version.

Shapes are lists with -1 for an unknown size, as in the wire formats of TensorFlow Serving. The
first axis of every input and output is the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from timonel.errors import CorruptError
from timonel.storage import read_document

InputKind = Literal["image", "table", "tensor"]
Task = Literal["classification", "regression", "tensor"]
CheckStatus = Literal["passed", "failed", "skipped"]

SAVED_MODEL_DIR = "saved_model"
EXPORT_FILE = "export.json"
REFERENCE_FILE = "reference.jsonl"
LABELS_FILE = "assets/labels.txt"
VERSION_FILE = "assets.extra/timonel.json"
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
KEPT_REFERENCE = f"assets.extra/{REFERENCE_FILE}"
PREDICT_METHOD = "tensorflow/serving/predict"


class Stored(BaseModel):
    """Base of documents read from disk; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    @classmethod
    def read(cls, path: Path, kind: str) -> Self:
        """Read the document of ``kind`` at ``path``.

        Raises:
            NotFoundError: The file does not exist.
            CorruptError: The content is not a valid document.
            FormatError: This release cannot read the format.
        """
        value = read_document(path, kind)
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "document"
            raise CorruptError(
                f"expected a {kind} document in {path}, got {place}: {first['msg']}",
                hint="the file was changed by hand or cut off; make it again",
            ) from error


class TensorInfo(Stored):
    """Named input or output of a signature."""

    dtype: str = Field(description="TensorFlow's name of the element type, such as float32.")
    shape: tuple[int, ...] | None = Field(description="Sizes, -1 if open; none if the rank is.")


class Signature(Stored):
    """Inputs and outputs of a SavedModel's signature, by name."""

    inputs: Mapping[str, TensorInfo] = Field(description="The tensors it takes.")
    outputs: Mapping[str, TensorInfo] = Field(description="The tensors it gives.")
    method: str = Field(default=PREDICT_METHOD, description="TensorFlow Serving's method name.")


class OutputKind(Stored):
    """Kind of the model's output, and its conversion in the exported graph."""

    task: Task = Field(description="Labels and scores, a value, or the model's own tensors.")
    output: str = Field(description="Taken for probabilities, logits or values.")
    because: str = Field(description="What said so.")
    applied: Literal["softmax", "sigmoid"] | None = Field(
        default=None, description="The function that the graph applies to make probabilities."
    )
    binary: bool = Field(
        default=False, description="One sigmoid output p was made the two scores [1 - p, p]."
    )


class Preparation(Stored):
    """Input sent by clients, and its conversion to the model's input."""

    input_kind: InputKind = Field(description="Image files, raw rows, or the model's own tensors.")
    transforms: Mapping[str, Any] | None = Field(
        default=None, description="The transforms that data.load applied, which the graph repeats."
    )
    source: Literal["data.load", "preprocess", "unknown"] = Field(
        description="Where the transforms come from."
    )


class ModelSummary(Stored):
    """Summary of the exported Keras model."""

    name: str = Field(description="The model's name.")
    type: str = Field(description="Its class.")
    parameters: int = Field(description="How many numbers it has.")
    trainable_parameters: int = Field(description="How many of them training changes.")
    precision: str = Field(
        default="float32", description="The coarsest type that a layer computes in."
    )


class Export(Stored):
    """Content of ``export.json``: a job's exported SavedModel, not yet a version."""

    created_at: float = Field(description="When it was made, in Unix seconds.")
    digest: str = Field(description="The digest of the SavedModel's folder.")
    size_bytes: int = Field(description="The size of the SavedModel's folder.")
    signatures: Mapping[str, Signature] = Field(description="Its entry points.")
    labels: tuple[str, ...] | None = Field(default=None, description="The labels, in their order.")
    label_mode: str | None = Field(default=None, description="How training saw the labels.")
    preparation: Preparation = Field(description="What a client sends.")
    meaning: OutputKind = Field(description="How the output was read.")
    model: ModelSummary = Field(description="The Keras model.")
    reference: Mapping[str, Any] | None = Field(
        default=None, description="The held-out predictions beside it: file, digest, examples."
    )
    notes: tuple[str, ...] = Field(default=(), description="What a person should know of it.")
    versions: Mapping[str, str] = Field(default_factory=dict, description="Packages that made it.")


class CheckResult(Stored):
    """Comparison of the exported model with training on held-out raw inputs."""

    status: CheckStatus = Field(description="Whether the export answers as training predicts.")
    message: str = Field(description="The same in a line for people.")
    examples: int = Field(default=0, description="Inputs that were compared.")
    max_abs_diff: float | None = Field(default=None, description="The largest difference.")
    label_agreement: float | None = Field(default=None, description="Share of equal labels.")
    accuracy: float | None = Field(default=None, description="Share of right labels.")
    mae: float | None = Field(default=None, description="Mean absolute error.")
    rmse: float | None = Field(default=None, description="Root of the mean squared error.")
    labels: tuple[str, ...] | None = Field(default=None, description="The matrix's axes.")
    confusion: tuple[tuple[int, ...], ...] | None = Field(
        default=None, description="Counts: rows are true labels, columns predicted ones."
    )
    from_records: int = Field(default=0, description="Inputs whose raw file was gone or changed.")
    seconds: float = Field(default=0.0, description="Time spent predicting.")
    load_seconds: float = Field(default=0.0, description="Time spent loading the model.")


class VersionDocument(Stored):
    """Content of ``assets.extra/timonel.json``: the origin of a published version."""

    name: str = Field(description="The model's name when it was published.")
    version: int = Field(description="Its number.")
    created_at: float = Field(description="When it was published, in Unix seconds.")
    digest: str = Field(description="The digest of the SavedModel, without this document.")
    export: Export = Field(description="What the job that made it said of it.")
    provenance: Mapping[str, Any] = Field(
        default_factory=dict, description="The run, the dataset and the source it was made of."
    )
    check: CheckResult | None = Field(default=None, description="What the check found.")
    timonel: str = Field(default="", description="The release that published it.")
