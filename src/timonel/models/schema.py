"""Documents about a model: export, check result, published version.

Shapes are lists with -1 for an unknown size, as in the wire formats of TensorFlow Serving. The
first axis of every input and output is the batch.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from timonel.errors import CorruptError
from timonel.storage import read_document

InputKind = Literal["image", "table", "tensor"]
Task = Literal["classification", "regression", "tensor"]
CheckStatus = Literal["passed", "failed", "skipped"]

SAVED_MODEL_DIR = "saved_model"
EXPORT_FILE = "export.json"
REFERENCE_FILE = "reference.jsonl"
VERSION_FILE = "assets.extra/timonel.json"
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
KEPT_REFERENCE = f"assets.extra/{REFERENCE_FILE}"
PREDICT_METHOD = "tensorflow/serving/predict"


class StoredDocument(BaseModel):
    """Base of documents read from disk; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")
    max_bytes: ClassVar[int] = 2**28
    """Largest file to read: parsing JSON takes many times its size."""

    @classmethod
    def read(cls, path: Path, kind: str) -> Self:
        """Read the document of ``kind`` at ``path``."""
        _check_file(path, cls.max_bytes)
        value = read_document(path, kind)
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "document"
            raise CorruptError(
                f"the {kind} document in {path} is broken: {place}: {first['msg']}",
                hint="the file was edited or truncated; create it again",
            ) from error


def _check_file(path: Path, max_bytes: int) -> None:
    """Reject what others may have put in the place of a document: pipes, devices, large files."""
    try:
        status = path.stat()
    except OSError:
        return  # reading it reports the error
    if not stat.S_ISREG(status.st_mode):
        raise CorruptError(f"{path} is no regular file")
    if status.st_size > max_bytes:
        raise CorruptError(f"{path} has more than {max_bytes >> 20} MiB")


class TensorInfo(StoredDocument):
    """Named input or output of a signature."""

    dtype: str = Field(description="Data type, such as float32.")
    shape: tuple[int, ...] | None = Field(
        description="Sizes, -1 if unknown; null if the rank is unknown."
    )


class StoredSignature(StoredDocument):
    """Inputs and outputs of a SavedModel's signature, by name."""

    inputs: Mapping[str, TensorInfo] = Field(description="Input tensors by name.")
    outputs: Mapping[str, TensorInfo] = Field(description="Output tensors by name.")
    method: str = Field(default=PREDICT_METHOD, description="Method name of TensorFlow Serving.")


def result_name(result: str, outputs: Collection[str]) -> str:
    """Return the name of the output ``label``, ``scores`` or ``class_id`` of a classifier.

    A model's own output of that name keeps it: the result is then ``predicted_label``.
    """
    return f"predicted_{result}" if result in outputs else result


def result_of(result: str, outputs: Mapping[str, Any]) -> Any:
    """Return the result ``label``, ``scores`` or ``class_id`` of an answer; None without it."""
    return outputs.get(f"predicted_{result}", outputs.get(result))


class OutputKind(StoredDocument):
    """Kind of the model's output, and its conversion in the exported graph."""

    task: Task = Field(description="What the serving signature returns.")
    output: str = Field(description="Interpretation: probabilities, logits, scores or values.")
    because: str = Field(description="Reason for the interpretation.")
    applied: Literal["softmax", "sigmoid"] | None = Field(
        default=None, description="Function that turns logits into probabilities."
    )
    binary: bool = Field(
        default=False, description="Whether one output p becomes the two scores [1 - p, p]."
    )
    several: bool = Field(
        default=False, description="Whether any number of labels may apply to an example."
    )


class Preparation(StoredDocument):
    """Input sent by clients, and its conversion to the model's input."""

    input_kind: InputKind = Field(
        description="Image files, rows of a table, or the model's own tensors."
    )
    transforms: Mapping[str, Any] | None = Field(
        default=None, description="Transforms of data.load that the graph repeats."
    )
    source: Literal["data.load", "data.load and map", "preprocess", "unknown"] = Field(
        description="Origin of the transforms; functions of `Dataset.map` are not in `transforms`."
    )


class ModelSummary(StoredDocument):
    """Summary of the exported Keras model."""

    name: str = Field(description="Name of the model.")
    type: str = Field(description="Class of the model.")
    parameters: int = Field(description="Number of parameters.")
    trainable_parameters: int = Field(description="Number of trainable parameters.")
    precision: str = Field(
        default="float32", description="Coarsest data type that a layer computes in."
    )
    may_mix_rows: tuple[str, ...] | None = Field(
        default=None,
        description="Layers that may mix the rows of a batch; null if they were not examined.",
    )


class Export(StoredDocument):
    """Content of ``export.json``: a job's exported SavedModel, not yet a version."""

    created_at: float = Field(description="Creation, in Unix seconds.")
    digest: str = Field(description="Digest of the SavedModel.")
    size_bytes: int = Field(description="Size of the SavedModel.")
    signatures: Mapping[str, StoredSignature] = Field(description="Signatures by name.")
    labels: tuple[str, ...] | None = Field(
        default=None, description="Labels in the order of the scores."
    )
    label_mode: str | None = Field(default=None, description="Label mode used in training.")
    preparation: Preparation = Field(description="Conversion of client input to model input.")
    meaning: OutputKind = Field(description="Conversion of model output to results.")
    model: ModelSummary = Field(description="Summary of the Keras model.")
    reference: Mapping[str, Any] | None = Field(
        default=None, description="Held-out predictions: file, digest and number of examples."
    )
    unchecked: str | None = Field(
        default=None, description="Why there are no held-out predictions to check with."
    )
    notes: tuple[str, ...] = Field(default=(), description="Notes for users.")
    versions: Mapping[str, str] = Field(
        default_factory=dict, description="Versions of the packages used."
    )


class CheckResult(StoredDocument):
    """Comparison of the exported model with training on held-out raw inputs."""

    status: CheckStatus = Field(description="Result of the comparison.")
    message: str = Field(description="The result in one line.")
    examples: int = Field(default=0, description="Number of inputs compared.")
    max_abs_diff: float | None = Field(
        default=None, description="Largest difference of a score or value."
    )
    label_agreement: float | None = Field(
        default=None, description="Share of inputs with the same label as in training."
    )
    accuracy: float | None = Field(default=None, description="Share of correct labels.")
    mae: float | None = Field(default=None, description="Mean absolute error.")
    rmse: float | None = Field(default=None, description="Root of the mean squared error.")
    labels: tuple[str, ...] | None = Field(
        default=None, description="Labels of the confusion matrix."
    )
    confusion: tuple[tuple[int, ...], ...] | None = Field(
        default=None, description="Counts; rows are true labels, columns predicted ones."
    )
    from_records: int = Field(default=0, description="Inputs read from the dataset's records.")
    rows_alone: int = Field(
        default=0, description="Number of inputs that were also computed alone."
    )
    rows_mixed: int = Field(
        default=0, description="Number of them whose results differed from those in a batch."
    )
    seconds: float = Field(default=0.0, description="Seconds spent predicting.")
    load_seconds: float = Field(default=0.0, description="Seconds spent loading the model.")


class RowEvidence(StoredDocument):
    """Whether rows of different requests may be computed in one batch."""

    independent: bool = Field(description="Whether no row of a batch depends on another.")
    reason: str = Field(description="The reason, in one line.")
    saved_model: str = Field(description="Identity of the SavedModel that was examined.")


class HolderComparison(StoredDocument):
    """Comparison with the holder of an alias on the same held-out records."""

    alias: str = Field(description="The alias.")
    metric: str = Field(description="Name of the metric.")
    value: float = Field(description="Its value for this version.")
    holder: int | None = Field(description="Version that had the alias; null for none.")
    holder_value: float | None = Field(description="Its value for that version.")
    examples: int = Field(description="Number of held-out records.")
    is_better: bool = Field(description="Whether the alias moves to this version.")

    def __str__(self) -> str:
        if self.holder is None:
            return f"{self.metric} {self.value:.4g}; no version was {self.alias} before"
        return (
            f"{self.metric} {self.value:.4g} against {self.holder_value:.4g} of version "
            f"{self.holder}, on {self.examples} held-out records"
        )


class VersionDocument(StoredDocument):
    """Content of ``assets.extra/timonel.json``: the origin of a published version."""

    max_bytes: ClassVar[int] = 2**24

    name: str = Field(description="Name of the model when published.")
    version: int = Field(description="Version number.")
    created_at: float = Field(description="Time of publishing, in Unix seconds.")
    digest: str = Field(description="Digest of the SavedModel, without this document.")
    export: Export = Field(description="Export document of the job.")
    provenance: Mapping[str, Any] = Field(
        default_factory=dict, description="Run, dataset and source code of the model."
    )
    check: CheckResult | None = Field(default=None, description="Result of the check.")
    comparison: HolderComparison | None = Field(
        default=None, description="Comparison with the holder of an alias."
    )
    rows: RowEvidence | None = Field(
        default=None, description="Evidence that rows of a batch are independent."
    )
    timonel: str = Field(default="", description="Release of timonel that published it.")
