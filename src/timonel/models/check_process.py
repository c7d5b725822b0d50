"""Process of the check: ``python -m timonel.models.check_process REQUEST ANSWER``.

Loads an exported SavedModel and feeds held-out raw inputs to ``serving_default`` like a client: the
bytes of image files, the values of rows. `timonel.models.check` compares the outputs. Only this
process imports TensorFlow for the check.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from timonel.errors import ModelError
from timonel.models.child import answer_request, end_with_parent
from timonel.models.exports import ReferenceExample, read_reference
from timonel.models.safety.check import check_saved_model
from timonel.models.schema import StoredDocument, result_of

_BATCH = 32
_ALONE = 16
"""Number of inputs to compute alone as well."""
_DT_STRING = 7  # tensorflow/core/framework/types.proto
_SPLIT_ORDER = ("validation", "test", "train")
"""Order to search a dataset's splits in: ``train`` hardly ever holds held-out examples."""


class CheckRequest(StoredDocument):
    """Request to the process of the check."""

    saved_model: Path = Field(description="Folder of the SavedModel.")
    reference: Path = Field(description="File of the held-out examples.")
    input_kind: Literal["image", "table"] = Field(description="Kind of the raw inputs.")
    outputs: tuple[str, ...] = Field(description="Names of the outputs to compare.")
    data_root: Path | None = Field(default=None, description="Current folder of the raw files.")
    dataset: Path | None = Field(
        default=None, description="Dataset whose records replace missing raw files."
    )


class ExportPrediction(StoredDocument):
    """Prediction of the exported model for a held-out example."""

    scores: tuple[float, ...] = Field(description="Probabilities by class, or the value.")
    label: str | None = Field(default=None, description="The predicted label.")


class Predictions(StoredDocument):
    """Predictions of the exported model."""

    by_key: Mapping[str, ExportPrediction] = Field(
        description="Predictions by key; examples without a raw input are left out."
    )
    alone: Mapping[str, ExportPrediction] = Field(
        default_factory=dict, description="Predictions of some inputs in requests of their own."
    )
    mixed: Mapping[str, ExportPrediction] = Field(
        default_factory=dict, description="The same inputs, in a batch of other neighbours."
    )
    from_records: int = Field(default=0, description="Inputs read from the dataset's records.")
    seconds: float = Field(default=0.0, description="Time spent predicting.")
    load_seconds: float = Field(default=0.0, description="Time spent loading the model.")


def answer(request: CheckRequest) -> Predictions:
    """Run the exported model on the held-out examples."""
    import tensorflow as tf  # noqa: PLC0415 - takes seconds; the request is read first

    check_saved_model(request.saved_model)
    inputs, from_records = _raw_inputs(request, read_reference(request.reference))
    keys = list(inputs)
    started = time.perf_counter()
    answers: dict[str, ExportPrediction] = {}
    with _as_model_errors(tf), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        serve = _load(request, session)
        loaded = time.perf_counter()
        for begin in range(0, len(keys), _BATCH):
            batch = keys[begin : begin + _BATCH]
            outputs = serve([inputs[key] for key in batch])
            answers.update(zip(batch, _answers(request, outputs), strict=True))
        seconds = time.perf_counter() - loaded
        alone, mixed = _alone_and_mixed(tf, request, serve, inputs)
    return Predictions(
        by_key=answers,
        alone=alone,
        mixed=mixed,
        from_records=from_records,
        seconds=seconds,
        load_seconds=loaded - started,
    )


def _alone_and_mixed(
    tf: Any,
    request: CheckRequest,
    serve: Callable[[Sequence[Any]], Mapping[str, Any]],
    inputs: Mapping[str, Any],
) -> tuple[dict[str, ExportPrediction], dict[str, ExportPrediction]]:
    """Predict some inputs one by one, and in one batch; empty if the model refuses either."""
    # From all parts, so that their neighbours are others than in the batches of all inputs.
    some = list(inputs)[:: max(1, len(inputs) // _ALONE)][-_ALONE:][::-1]
    try:
        alone = {}
        for key in some:
            (alone[key],) = _answers(request, serve([inputs[key]]))
        together = _answers(request, serve([inputs[key] for key in some])) if some else ()
        return alone, dict(zip(some, together, strict=True))
    except (tf.errors.OpError, ValueError):
        return {}, {}


def _raw_inputs(
    request: CheckRequest, examples: Sequence[ReferenceExample]
) -> tuple[dict[str, Any], int]:
    """Return raw inputs by key, and how many came from the dataset's records."""
    if request.input_kind == "table":
        return {each.key: each.source for each in examples if each.source is not None}, 0
    files = {each.key: each.read_file(request.data_root) for each in examples}
    missing = {key for key, content in files.items() if content is None}
    records = _records(request.dataset, missing) if request.dataset and missing else {}
    found = {key: content for key, content in files.items() if content is not None}
    return {**found, **records}, len(records)


def _records(dataset: Path, keys: set[str]) -> dict[str, bytes]:
    """Read the images of ``keys`` from the dataset's records, if present."""
    import tensorflow as tf  # noqa: PLC0415 - imported by the caller already

    def split_order(path: Path) -> int:
        split = path.name.partition("-")[0]
        return _SPLIT_ORDER.index(split) if split in _SPLIT_ORDER else 0

    found: dict[str, bytes] = {}
    for shard in sorted(dataset.glob("*.tfrecord"), key=split_order):
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            key = features["key"].bytes_list.value[0].decode()
            if key in keys:
                found[key] = features["image"].bytes_list.value[0]
        if len(found) == len(keys):
            break
    return found


@contextlib.contextmanager
def _as_model_errors(tf: Any) -> Iterator[None]:
    """Turn TensorFlow's errors from loading or running a model into one line."""
    try:
        yield
    except (tf.errors.OpError, OSError, ValueError, TypeError, KeyError) as error:
        first = next(iter(str(error).strip().splitlines()), "no message")
        raise ModelError(
            "the exported model failed on held-out raw inputs: "
            f"{type(error).__name__}: {first[:300]}",
            hint="see the full error in the log of the check",
        ) from error


def _load(request: CheckRequest, session: Any) -> Callable[[Sequence[Any]], Mapping[str, Any]]:
    """Load the model like TensorFlow Serving; return its serving function.

    The function takes raw inputs and feeds them by the names that clients use.
    """
    import tensorflow as tf  # noqa: PLC0415 - imported by the caller already

    meta = tf.compat.v1.saved_model.load(session, ["serve"], str(request.saved_model))
    signature = meta.signature_def["serving_default"]
    fetches = {name: tensor.name for name, tensor in signature.outputs.items()}

    def serve(raw: Sequence[Any]) -> Mapping[str, Any]:
        if request.input_kind == "image":
            (tensor,) = signature.inputs.values()
            feed = {tensor.name: list(raw)}
        else:
            feed = {
                tensor.name: [_cell(row.get(name), tensor.dtype) for row in raw]
                for name, tensor in signature.inputs.items()
            }
        found: Mapping[str, Any] = session.run(fetches, feed)
        return found

    return serve


def _cell(value: Any, dtype: int) -> Any:
    if dtype == _DT_STRING:
        return "" if value is None else str(value)
    return float("nan") if value in {None, ""} else float(value)


def _answers(request: CheckRequest, outputs: Mapping[str, Any]) -> Iterator[ExportPrediction]:
    if request.outputs == ("scores",):
        found, labels = [result_of("scores", outputs)], result_of("label", outputs)
    else:
        found, labels = [outputs[name] for name in request.outputs], None
    for number, rows in enumerate(zip(*found, strict=True)):
        scores = tuple(float(each) for row in rows for each in row.reshape(-1))
        label = None if labels is None else labels[number].decode()
        yield ExportPrediction(scores=scores, label=label)


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second."""
    return answer_request(arguments, CheckRequest, answer)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
