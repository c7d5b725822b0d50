"""Check an exported model: compare its predictions with those of training. Without TensorFlow."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timonel.errors import ModelError, TimonelError
from timonel.models.check_process import CheckRequest, ExportPrediction, Predictions
from timonel.models.child import run_child
from timonel.models.evaluation import accuracy, confusion_matrix
from timonel.models.exports import ReferenceExample
from timonel.models.schema import CheckResult, Export
from timonel.storage.atomic import aside_dir

_TIMEOUT_S = 900.0
_MOST_WRONG = {"int8": 0.05}
"""Share of examples that may differ by more, by precision."""
_TOLERANCES = {
    "float32": (1e-4, 1e-3),
    # Layers that compute with fewer bits (11 and 8) round each sum differently.
    "float16": (1e-3, 5e-3),
    "bfloat16": (8e-3, 4e-2),
    # Simulated integers: another rounding of a sum moves a value, and those after it, by steps.
    "int8": (0.1, 0.1),
}
"""Absolute and relative difference allowed for other kernels and fused operations.

By compute precision of the layers. Another resize method differs by more than float32 allows.
"""


def check_saved_model(
    saved_model: Path,
    export: Export,
    reference: Path,
    examples: Sequence[ReferenceExample],
    *,
    log: Path | None = None,
    data_root: Path | None = None,
    dataset: Path | None = None,
) -> CheckResult:
    """Compare a SavedModel's predictions for held-out raw inputs with those of training.

    Args:
        examples: The content of that file.
        log: The file for the process's output.
        data_root: The current folder of the raw files, if they were moved.

    Returns:
        The result, of status ``skipped`` if there is nothing to compare.
    """
    reason = _skip_reason(export, examples)
    if reason is not None:
        return CheckResult(status="skipped", message=f"not checked: {reason}")
    request = check_request(saved_model, export, reference, data_root, dataset)
    has_label = export.meaning.task == "classification" and not export.meaning.several
    labels = export.labels if has_label else None
    return compare(examples, run_check(request, log), labels, export.model.precision)


def check_request(
    saved_model: Path,
    export: Export,
    reference: Path,
    data_root: Path | None,
    dataset: Path | None,
) -> CheckRequest:
    """Return the request that `run_check` takes, for arguments of `check_saved_model`."""
    return CheckRequest.model_validate(
        {
            "saved_model": saved_model,
            "reference": reference,
            "input_kind": export.preparation.input_kind,
            "outputs": _compared(export),
            "data_root": data_root,
            "dataset": dataset,
        }
    )


def run_check(request: CheckRequest, log: Path | None = None) -> Predictions:
    """Run the exported model on the held-out examples, in a child process."""
    with contextlib.ExitStack() as stack:
        if log is None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            # Beside the log, where later sweeps find it.
            scratch = stack.enter_context(aside_dir(log.parent))
        try:
            return run_child(
                "timonel.models.check_process",
                request,
                Predictions,
                task="check",
                folder=scratch,
                log=log or scratch / "check.log",
                timeout_s=_TIMEOUT_S,
            )
        except TimeoutError as error:
            raise ModelError(
                f"the exported model did not answer within {_TIMEOUT_S:g} s",
                hint="make the model faster, or export without the check (--no-check)",
            ) from error
        except TimonelError as error:
            raise ModelError(error.message, hint=f"see {log}" if log else error.hint) from error


def compare(
    examples: Sequence[ReferenceExample],
    found: Predictions,
    labels: Sequence[str] | None,
    precision: str = "float32",
) -> CheckResult:
    """Compare predictions of the exported model with those of the training pipeline.

    Args:
        labels: The labels of a classification; None for other outputs, and if several labels of an
            example may apply.
        precision: The coarsest dtype that the model computes in.
    """
    pairs = [(each, found.by_key[each.key]) for each in examples if each.key in found.by_key]
    if not pairs:
        message = "not checked: no raw file or record of the held-out examples is left"
        return CheckResult(status="skipped", message=message)
    wrong = [each.key for each, answer in pairs if not _agrees(each, answer, labels, precision)]
    if len(wrong) <= _MOST_WRONG.get(precision, 0.0) * len(pairs):
        wrong = []
    difference = max(_difference(example, answer) for example, answer in pairs)
    return CheckResult(
        status="failed" if wrong else "passed",
        message=_message(len(pairs), difference, wrong, found, len(examples)),
        examples=len(pairs),
        max_abs_diff=difference,
        from_records=found.from_records,
        seconds=found.seconds,
        load_seconds=found.load_seconds,
        rows_alone=_count_alone(found),
        rows_mixed=_count_mixed(found, labels, precision),
        **(_class_metrics(pairs, labels) if labels else _value_metrics(pairs)),
    )


def _count_alone(found: Predictions) -> int:
    """Count the inputs that were computed alone; none if all predictions are equal."""
    results = {each.scores for each in (*found.alone.values(), *found.by_key.values())}
    return len(found.alone) if len(results) > 1 else 0


def _count_mixed(found: Predictions, labels: Sequence[str] | None, precision: str) -> int:
    """Count the inputs whose predictions depend on the other rows of their batch."""
    mixed = 0
    for key, alone in found.alone.items():
        expected = ReferenceExample(key=key, scores=alone.scores)
        others = (each for each in (found.by_key.get(key), found.mixed.get(key)) if each)
        mixed += not all(_agrees(expected, each, labels, precision) for each in others)
    return mixed


def _compared(export: Export) -> list[str]:
    """Return the outputs whose numbers are compared, in the order of the examples' numbers."""
    outputs = sorted(export.signatures["serving_default"].outputs)
    return ["scores"] if export.meaning.task == "classification" else outputs


def _skip_reason(export: Export, examples: Sequence[ReferenceExample]) -> str | None:
    if export.preparation.input_kind == "tensor":
        return "the model takes tensors, so raw files cannot be fed to it"
    if not examples:
        return export.unchecked or "training left no held-out predictions to compare with"
    return None


def _agrees(
    example: ReferenceExample,
    answer: ExportPrediction,
    labels: Sequence[str] | None,
    precision: str,
) -> bool:
    absolute, relative = _TOLERANCES[precision]
    if len(example.scores) != len(answer.scores):
        return False
    for found, expected in zip(answer.scores, example.scores, strict=True):
        is_close = abs(found - expected) <= absolute + relative * abs(expected)
        if not is_close and not (math.isnan(found) and math.isnan(expected)):
            return False
    if not labels:
        return True
    # If scores tie within the tolerance, either label is correct.
    highest = max(example.scores)
    lowest_tie = highest - 2 * (absolute + relative * abs(highest))
    ties = {labels[i] for i, score in enumerate(example.scores) if score >= lowest_tie}
    return answer.label in ties


def _difference(example: ReferenceExample, answer: ExportPrediction) -> float:
    if len(example.scores) != len(answer.scores):
        return math.inf
    return max(abs(a - b) for a, b in zip(answer.scores, example.scores, strict=True))


def _class_metrics(
    pairs: Sequence[tuple[ReferenceExample, ExportPrediction]], labels: Sequence[str]
) -> dict[str, Any]:
    equal = [labels[_best(example.scores)] == answer.label for example, answer in pairs]
    known = [
        (int(example.label), _best(answer.scores))
        for example, answer in pairs
        if example.label is not None
    ]
    confusion = confusion_matrix(known, len(labels)) if known else None
    return {
        "label_agreement": sum(equal) / len(equal),
        "accuracy": accuracy(confusion) if confusion else None,
        "labels": tuple(labels),
        "confusion": confusion,
    }


def _value_metrics(pairs: Sequence[tuple[ReferenceExample, ExportPrediction]]) -> dict[str, Any]:
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


def _message(
    count: int, difference: float, wrong: Sequence[str], found: Predictions, expected: int
) -> str:
    if wrong:
        text = (
            f"the exported model's predictions differ from training on {len(wrong)} of {count} "
            f"held-out inputs (first: {wrong[0]}), by up to {difference:.3g}"
        )
    else:
        text = (
            f"the exported model predicts the same as training on {count} held-out inputs "
            f"(largest difference {difference:.1e})"
        )
    parts = [text]
    if found.from_records:
        parts.append(
            f"{found.from_records} of them from the dataset's records, not from raw files "
            "(missing, changed, or re-encoded by convert)"
        )
    if expected > count:
        parts.append(f"not found: {expected - count}")
    return "; ".join(parts)
