"""Compare the exported model's answers with the predictions of training. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from timonel.models.evaluation import Confusion, accuracy, confusion_matrix
from timonel.models.reference import ReferenceExample
from timonel.models.schema import CheckResult, Stored


@dataclass(frozen=True)
class Tolerance:
    """Allowed difference from a prediction, due to other kernels and fused operations."""

    absolute: float
    relative: float

    def at(self, value: float) -> float:
        """Return the allowed difference from ``value``."""
        return self.absolute + self.relative * abs(value)


TOLERANCES = {
    "float32": Tolerance(1e-4, 1e-3),
    # Layers that compute with fewer bits (11 and 8) round each sum differently.
    "float16": Tolerance(1e-3, 5e-3),
    "bfloat16": Tolerance(8e-3, 4e-2),
}
"""By compute precision of the layers. Another resize method differs by more than float32 allows."""


class Answer(Stored):
    """Answer of the exported model to a held-out example."""

    scores: tuple[float, ...] = Field(description="Probabilities by class, or the one value.")
    label: str | None = Field(default=None, description="The label it named.")


class Answers(Stored):
    """Answers of the exported model, from the process of the check."""

    answers: Mapping[str, Answer] = Field(description="By key; raw inputs not found are left out.")
    from_records: int = Field(default=0, description="Inputs taken from the dataset's records.")
    seconds: float = Field(default=0.0, description="Time spent predicting.")
    load_seconds: float = Field(default=0.0, description="Time spent loading the model.")


def compare(
    examples: Sequence[ReferenceExample],
    found: Answers,
    labels: Sequence[str] | None,
    precision: str = "float32",
) -> CheckResult:
    """Compare answers with the predictions of the training pipeline.

    Args:
        examples: The predictions of training.
        found: The answers of the exported model.
        labels: The labels of a classification; None for a regression.
        precision: The coarsest dtype that the model computes in.
    """
    near = TOLERANCES[precision]
    pairs = [(each, found.answers[each.key]) for each in examples if each.key in found.answers]
    if not pairs:
        message = "not checked: neither a raw file nor a record of the held-out examples is left"
        return CheckResult(status="skipped", message=message)
    measured: dict[str, Any] = {
        "examples": len(pairs),
        "max_abs_diff": max(_difference(example, answer) for example, answer in pairs),
        "from_records": found.from_records,
        "seconds": found.seconds,
        "load_seconds": found.load_seconds,
        **(_classified(pairs, labels) if labels else _regressed(pairs)),
    }
    wrong = [each.key for each, answer in pairs if not _agrees(each, answer, labels, near)]
    measured["status"] = "failed" if wrong else "passed"
    measured["message"] = _message(measured, wrong, len(examples))
    return CheckResult.model_validate(measured)


def _agrees(
    example: ReferenceExample, answer: Answer, labels: Sequence[str] | None, near: Tolerance
) -> bool:
    if len(example.scores) != len(answer.scores):
        return False
    scores = zip(answer.scores, example.scores, strict=True)
    close = all(_is_close(found, expected, near) for found, expected in scores)
    # If scores tie within the tolerance, either label is correct.
    highest = max(example.scores)
    likely = {
        labels[number]
        for number, score in enumerate(example.scores)
        if labels and score >= highest - 2 * near.at(highest)
    }
    return close and (not labels or answer.label in likely)


def _is_close(found: float, expected: float, near: Tolerance) -> bool:
    if math.isnan(found) or math.isnan(expected):
        return math.isnan(found) and math.isnan(expected)
    return abs(found - expected) <= near.at(expected)


def _difference(example: ReferenceExample, answer: Answer) -> float:
    if len(example.scores) != len(answer.scores):
        return math.inf
    return max(abs(a - b) for a, b in zip(answer.scores, example.scores, strict=True))


def _classified(
    pairs: Sequence[tuple[ReferenceExample, Answer]], labels: Sequence[str]
) -> dict[str, Any]:
    expected = [labels[_best(example.scores)] for example, _ in pairs]
    equal = [label == answer.label for label, (_, answer) in zip(expected, pairs, strict=True)]
    known = [
        (int(example.label), _best(answer.scores))
        for example, answer in pairs
        if example.label is not None
    ]
    confusion: Confusion | None = confusion_matrix(known, len(labels)) if known else None
    return {
        "label_agreement": sum(equal) / len(equal),
        "accuracy": accuracy(confusion) if confusion else None,
        "labels": tuple(labels),
        "confusion": confusion,
    }


def _regressed(pairs: Sequence[tuple[ReferenceExample, Answer]]) -> dict[str, Any]:
    errors = [
        answer.scores[0] - example.label for example, answer in pairs if example.label is not None
    ]
    if not errors:
        return {}
    return {
        "mae": sum(map(abs, errors)) / len(errors),
        "rmse": math.sqrt(sum(error * error for error in errors) / len(errors)),
    }


def _best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


def _message(measured: Mapping[str, Any], wrong: Sequence[str], wanted: int) -> str:
    count, difference = measured["examples"], measured["max_abs_diff"]
    parts = []
    if wrong:
        parts.append(
            f"the exported model answers otherwise than training predicted on {len(wrong)} of "
            f"{count} held-out inputs (first: {wrong[0]}), by up to {difference:.3g}"
        )
    else:
        parts.append(
            f"the exported model answers as training predicted on {count} held-out inputs "
            f"(largest difference {difference:.1e})"
        )
    if measured["from_records"]:
        parts.append(
            f"{measured['from_records']} of them from the dataset's records, as their raw files "
            "are gone or have changed"
        )
    if wanted > count:
        parts.append(f"{wanted - count} others could not be found")
    return "; ".join(parts)
