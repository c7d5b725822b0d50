"""Process of the check: ``python -m timonel.models.check REQUEST ANSWERS``.

Loads an exported SavedModel and feeds held-out raw inputs to ``serving_default`` like a client: the
bytes of image files, the values of rows. Writes the outputs to a file as JSON; the parent process
compares them (`timonel.models.comparison`). Only this process imports TensorFlow for the check.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from timonel.errors import ModelError, TimonelError
from timonel.models import child
from timonel.models.comparison import Answer, Answers
from timonel.models.reference import ReferenceExample, read_reference
from timonel.models.schema import Stored
from timonel.storage import digest_bytes, write_json

_BATCH = 32
_DT_STRING = 7  # tensorflow/core/framework/types.proto
_SPLIT_ORDER = ("validation", "test", "train")


class Request(Stored):
    """Request to the process of the check."""

    saved_model: Path = Field(description="The SavedModel.")
    reference: Path = Field(description="The held-out examples.")
    input_kind: Literal["image", "table"] = Field(description="What a raw input is.")
    output: Literal["scores", "value"] = Field(description="The output to compare.")
    data_root: Path | None = Field(
        default=None, description="Where the raw files are now, by their keys."
    )
    dataset: Path | None = Field(default=None, description="Whose records to fall back to.")


class _RawInputs:
    """Raw inputs by key, from the original files or the dataset's records."""

    def __init__(self, request: Request, examples: Sequence[ReferenceExample]) -> None:
        self._request = request
        found = {example.key: self._outside(example) for example in examples}
        lacking = {key for key, raw in found.items() if raw is None}
        is_image = request.input_kind == "image"
        records = _records(request, lacking) if lacking and is_image else {}
        self.from_records = len(records)
        self.by_key = {key: raw for key, raw in {**found, **records}.items() if raw is not None}

    def _outside(self, example: ReferenceExample) -> Any:
        """Return a row or an unchanged image file's bytes, else None."""
        if self._request.input_kind == "table":
            return example.source
        root = self._request.data_root
        path = root / example.key if root else Path(str(example.source or ""))
        if not path.is_file():
            return None
        content = path.read_bytes()
        changed = example.digest is not None and digest_bytes(content) != example.digest
        return None if changed else content


def answer(request: Request) -> Answers:
    """Run the exported model on the held-out examples.

    Raises:
        ModelError: The model cannot be loaded, or fails on an example.
        CorruptError: The held-out examples cannot be read.
    """
    import tensorflow as tf  # noqa: PLC0415 - takes seconds; the request is read first

    examples = read_reference(request.reference)
    inputs = _RawInputs(request, examples)
    keys = list(inputs.by_key)
    started = time.perf_counter()
    answers: dict[str, Answer] = {}
    with _as_model_errors(tf), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        serve = _load(request, session)
        loaded = time.perf_counter()
        for begin in range(0, len(keys), _BATCH):
            batch = keys[begin : begin + _BATCH]
            outputs = serve([inputs.by_key[key] for key in batch])
            answers.update(zip(batch, _answers(request, outputs), strict=True))
    return Answers(
        answers=answers,
        from_records=inputs.from_records,
        seconds=time.perf_counter() - loaded,
        load_seconds=loaded - started,
    )


@contextlib.contextmanager
def _as_model_errors(tf: Any) -> Iterator[None]:
    """Turn TensorFlow's errors from loading or running a model into one line."""
    try:
        yield
    except (tf.errors.OpError, OSError, ValueError, TypeError, KeyError) as error:
        first = next(iter(str(error).strip().splitlines()), "no message")
        raise ModelError(
            "expected the exported model to answer held-out raw inputs, got "
            f"{type(error).__name__}: {first[:300]}",
            hint="see the log of the check for all of it",
        ) from error


def _load(request: Request, session: Any) -> Callable[[Sequence[Any]], Mapping[str, Any]]:
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


def _answers(request: Request, outputs: Mapping[str, Any]) -> Iterator[Answer]:
    values = outputs[request.output]
    labels = outputs["label"] if "label" in outputs else [None] * len(values)
    for value, label in zip(values, labels, strict=True):
        scores = tuple(float(each) for each in value.reshape(-1))
        yield Answer(scores=scores, label=None if label is None else label.decode())


def _records(request: Request, keys: set[str]) -> dict[str, Any]:
    """Read the files of ``keys`` from the dataset's records, if present."""
    import tensorflow as tf  # noqa: PLC0415 - imported by the caller already

    found: dict[str, Any] = {}
    for shard in _shards(request.dataset):
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            key = features["key"].bytes_list.value[0].decode()
            if key in keys:
                found[key] = features["image"].bytes_list.value[0]
        if len(found) == len(keys):
            break
    return found


def _shards(dataset: Path | None) -> Iterable[Path]:
    """Return a dataset's shards, those for training last.

    They hardly ever hold held-out examples.
    """
    found = sorted(dataset.glob("*.tfrecord")) if dataset else []
    order = {split: number for number, split in enumerate(_SPLIT_ORDER)}
    return sorted(found, key=lambda path: order.get(path.name.partition("-")[0], 0))


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second."""
    request_path, answers_path = map(Path, arguments)
    try:
        found = answer(Request.model_validate_json(request_path.read_text()))
    except TimonelError as error:
        write_json(answers_path, {"error": error.message, "hint": error.hint})
        raise
    write_json(answers_path, found.model_dump(mode="json"))
    return 0


if __name__ == "__main__":
    child.end_with_parent()
    sys.exit(main(sys.argv[1:]))
