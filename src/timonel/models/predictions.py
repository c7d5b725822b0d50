"""Store the training pipeline's predictions for held-out examples. TensorFlow processes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from timonel.models.reference import MAX_EXAMPLES, ReferenceExample, write_reference
from timonel.models.schema import OutputKind
from timonel.models.signatures import scores_of
from timonel.storage import digest_file


def keep_predictions(
    path: Path,
    reference: Mapping[str, Any] | None,
    meaning: OutputKind,
    labels: Sequence[str] | None,
) -> dict[str, Any] | None:
    """Write the training pipeline's predictions to ``path``, as scores or values.

    Args:
        path: The file to write.
        reference: See `timonel.models.savedmodel.export_live`.
        meaning: The kind of the model's output.
        labels: The labels of a classification.

    Returns:
        The entry of the export document; None if there is nothing to compare.
    """
    if reference is None or meaning.task == "tensor" or not len(reference["keys"]):
        return None
    outputs = np.asarray(reference["scores"], np.float32)[:MAX_EXAMPLES]
    if meaning.task == "classification":
        outputs = scores_of(meaning, outputs).numpy()
    truth = _true_labels(reference.get("labels"), labels)
    examples = [
        ReferenceExample(
            key=str(key),
            source=_plain_source(_at(reference.get("sources"), number)),
            digest=_at(reference.get("digests"), number),
            scores=tuple(outputs[number].reshape(-1).tolist()),
            label=_at(truth, number),
        )
        for number, key in enumerate(reference["keys"][:MAX_EXAMPLES])
    ]
    write_reference(path, examples)
    return {"file": path.name, "digest": digest_file(path), "examples": len(examples)}


def _at(values: Sequence[Any] | None, number: int) -> Any:
    return None if values is None else values[number]


def _plain_source(source: Any) -> Any:
    if not isinstance(source, Mapping):
        return None if source is None else str(source)
    return {name: getattr(value, "item", lambda v=value: v)() for name, value in source.items()}


def _true_labels(values: Any, labels: Sequence[str] | None) -> list[float] | None:
    """Return true labels as class indices or values.

    They are given as indices, values, one-hot rows or names.
    """
    if values is None:
        return None
    array = np.asarray(values)
    if array.dtype.kind in "US":
        return [float((labels or ()).index(str(name))) for name in array.ravel()]
    if labels and array.ndim == 2 and array.shape[1] > 1:
        array = array.argmax(axis=1)
    return [float(value) for value in array.reshape(len(array), -1)[:, 0]]
