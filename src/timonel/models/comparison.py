"""Compare a model with the version that has an alias, on the same held-out records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.errors import ModelError, SpecError
from timonel.models.check import check_request, run_check
from timonel.models.check_process import ExportPrediction
from timonel.models.exports import ReferenceExample
from timonel.models.schema import REFERENCE_FILE, CheckResult, Export, HolderComparison
from timonel.models.versions import ModelVersion
from timonel.tracking.metric_names import is_larger_better

MEASURED = ("accuracy", "mae", "rmse")
"""Metrics that the check measures on held-out records."""


@dataclass(frozen=True)
class Challenger:
    """A model that is about to be published.

    Args:
        folder: Its export folder, with the held-out records.
        data_root: The current folder of the raw files, if they were moved.
    """

    folder: Path
    export: Export
    examples: Sequence[ReferenceExample]
    check: CheckResult | None
    data_root: Path | None = None
    dataset: Path | None = None


def check_metric(metric: str) -> None:
    """Check that models can be compared by a metric."""
    if is_larger_better(metric) is None or metric not in MEASURED:
        raise SpecError(
            f"cannot compare models by {metric!r}: the check measures {', '.join(MEASURED)}",
            hint="use accuracy for labels, and mae or rmse for values",
        )


def compare_with_holder(
    challenger: Challenger, alias: str, metric: str, holder: ModelVersion | None, log: Path
) -> HolderComparison:
    """Compare a model with the version that has an alias.

    Args:
        metric: One of `MEASURED`.
        holder: The version; None if no version has the alias.
        log: File for the output of the holder's process.
    """
    check = challenger.check
    own = None if check is None else getattr(check, metric)
    if check is None or own is None:
        reason = "it was not checked" if check is None else check.message
        hint = "choose another metric, or publish without --if-better"
        if others := [name for name in MEASURED if getattr(check, name, None) is not None]:
            reason = f"the model predicts {'labels' if metric != 'accuracy' else 'numbers'}"
            hint = f"compare by {' or '.join(others)}"
        raise ModelError(f"cannot compare by {metric}: {reason}", hint=hint)
    value, count = None, check.examples
    if holder is not None:
        value, count = _value_of(holder, challenger, metric, log)
        if count != check.examples:
            raise ModelError(
                f"cannot compare with {holder}: it answered {count} held-out records of "
                f"{check.examples}",
                hint="were raw files changed meanwhile? Export again",
            )
    better = value is None or (own > value if is_larger_better(metric) else own < value)
    return HolderComparison(
        alias=alias,
        metric=metric,
        value=own,
        holder=None if holder is None else holder.number,
        holder_value=value,
        examples=count,
        is_better=better,
    )


def _value_of(
    holder: ModelVersion, challenger: Challenger, metric: str, log: Path
) -> tuple[float, int]:
    """Return the metric of the holder on the challenger's records, and their number."""
    export = holder.document.export if holder.document else challenger.export
    _check_comparable(holder, export, challenger)
    request = check_request(
        holder.path,
        export,
        challenger.folder / REFERENCE_FILE,
        challenger.data_root,
        challenger.dataset,
    )
    try:
        found = run_check(request, log).by_key
    except ModelError as error:
        raise ModelError(
            f"cannot compare with {holder}: {error.message}", hint=error.hint
        ) from error
    pairs = [(each, found[each.key]) for each in challenger.examples if each.key in found]
    labels = challenger.export.labels
    value = measure(metric, pairs, labels or (), (holder.labels or labels or ()))
    if value is None:
        raise ModelError(
            f"cannot compare with {holder} by {metric}: no held-out record has a true label"
        )
    return value, len(pairs)


def _check_comparable(holder: ModelVersion, export: Export, challenger: Challenger) -> None:
    own = challenger.export
    kinds = [(each.preparation.input_kind, each.meaning.task) for each in (export, own)]
    if kinds[0] != kinds[1]:
        raise ModelError(
            f"cannot compare with {holder}: it takes {kinds[0][0]} for {kinds[0][1]}, this model "
            f"{kinds[1][0]} for {kinds[1][1]}"
        )
    if own.preparation.input_kind != "table":
        return
    row = next((each.source for each in challenger.examples), None)
    needed = holder.signatures["serving_default"].inputs.keys()
    missing = sorted(needed - (set() if row is None or isinstance(row, str) else set(row)))
    if missing:
        raise ModelError(
            f"cannot compare with {holder}: the held-out rows lack its column {missing[0]}"
        )


def measure(
    metric: str,
    pairs: Sequence[tuple[ReferenceExample, ExportPrediction]],
    true_labels: Sequence[str],
    labels: Sequence[str],
) -> float | None:
    """Return a metric of predictions; None if no record has a true label or value.

    Args:
        metric: One of `MEASURED`.
        true_labels: Names of the records' labels, by index.
        labels: Names of the model's labels, in the order of its scores.
    """
    known = [(each.label, answer) for each, answer in pairs if each.label is not None]
    if not known:
        return None
    if metric == "accuracy":
        # Models may have their labels in another order.
        right = [true_labels[int(true)] == _label(answer, labels) for true, answer in known]
        return sum(right) / len(right)
    errors = [answer.scores[0] - true for true, answer in known]
    if metric == "mae":
        return sum(map(abs, errors)) / len(errors)
    return math.sqrt(sum(error * error for error in errors) / len(errors))


def _label(answer: ExportPrediction, labels: Sequence[str]) -> str | None:
    if answer.label is not None:
        return answer.label
    best = max(range(len(answer.scores)), key=answer.scores.__getitem__)
    return labels[best] if best < len(labels) else None
