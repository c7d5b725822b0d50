"""Check results of classifiers and regressions, with TensorFlow Serving's messages. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timonel.serving.signature import DTYPE_NAMES, Array
from timonel.serving.status import invalid_argument


@dataclass(frozen=True)
class Classes:
    """Result of Classify: n examples, k classes each.

    Args:
        labels: Labels as bytes, object [n, k]; None if the model returns only scores.
        scores: float32 [n, k]; None if the model returns only labels.
    """

    labels: Array | None
    scores: Array | None

    def rows(self) -> list[list[tuple[str, float]]]:
        """Return (label, score) pairs per example; missing values are "" and 0."""
        present = self.scores if self.labels is None else self.labels
        assert present is not None, "a signature gives one of them at least"
        labels = np.full(present.shape, b"", object) if self.labels is None else self.labels
        scores = np.zeros(present.shape, np.float32) if self.scores is None else self.scores
        names = [[label.decode(errors="replace") for label in row] for row in labels.tolist()]
        return [
            list(zip(row, values.tolist(), strict=True))
            for row, values in zip(names, scores, strict=True)
        ]


def checked_classes(labels: Array | None, scores: Array | None, count: int) -> Classes:
    """Check a classifier's outputs for ``count`` examples.

    Raises:
        StatusError: Types or shapes are not those of `Classes`.
    """
    if labels is not None:
        _check_matrix(labels, "classes", "DT_STRING", count)
    if scores is not None:
        _check_matrix(scores, "scores", "DT_FLOAT", count)
    if labels is not None and scores is not None and labels.shape[1] != scores.shape[1]:
        raise invalid_argument(
            "Tensors class and score should match in dim_size(1). "
            f"Got {labels.shape[1]} vs. {scores.shape[1]}"
        )
    return Classes(labels, scores)


def checked_values(array: Array, count: int) -> Array:
    """Check a regression's output for ``count`` examples; return float32 [count].

    Raises:
        StatusError: It is neither float32 [count] nor [count, 1].
    """
    if array.ndim != 1 and (array.ndim != 2 or array.shape[1] != 1):
        raise invalid_argument(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] "
            f"but got {_shape(array)}"
        )
    if len(array) != count:
        raise invalid_argument(
            f"Input batch size did not match output batch size: {count} vs. {len(array)}"
        )
    if _dtype(array) != "DT_FLOAT":
        raise invalid_argument(f"Expected output Tensor of DT_FLOAT.  Got: {_dtype(array)}")
    return array.reshape(count)


def _check_matrix(array: Array, name: str, dtype: str, count: int) -> None:
    if array.ndim != 2:
        raise invalid_argument(
            f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}"
        )
    if _dtype(array) != dtype:
        raise invalid_argument(f"Expected {name} Tensor of {dtype}. Got: {_dtype(array)}")
    if len(array) != count:
        raise invalid_argument(f"Expected {name} output batch size of {count}. Got: {len(array)}")


def _dtype(array: Array) -> str:
    return DTYPE_NAMES.get(array.dtype, str(array.dtype))


def _shape(array: Array) -> str:
    return "[" + ",".join(map(str, array.shape)) + "]"
