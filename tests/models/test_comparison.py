"""Comparison of a model with the holder of an alias; the models' processes are replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from timonel.errors import ModelError, SpecError
from timonel.models import CheckResult, ModelRepository, ModelVersion
from timonel.models.check_process import CheckRequest, ExportPrediction, Predictions
from timonel.models.comparison import Challenger, check_metric, compare_with_holder, measure
from timonel.models.exports import ReferenceExample, read_export, reference_of

LABELS = ("no", "yes")


def records(*truths: float | None) -> list[ReferenceExample]:
    return [
        ReferenceExample(key=str(number), scores=(0.5, 0.5), label=truth)
        for number, truth in enumerate(truths)
    ]


def paired(
    truths: Sequence[float | None], answers: Sequence[tuple[float, ...]]
) -> list[tuple[ReferenceExample, ExportPrediction]]:
    predictions = [ExportPrediction(scores=scores) for scores in answers]
    return list(zip(records(*truths), predictions, strict=True))


def test_labels_are_compared_by_name() -> None:
    pairs = paired([0, 1, 1, None], [(0.9, 0.1), (0.2, 0.8), (0.6, 0.4), (1, 0)])
    assert measure("accuracy", pairs, LABELS, LABELS) == pytest.approx(2 / 3)
    assert measure("accuracy", pairs, LABELS, ("yes", "no")) == pytest.approx(1 / 3)
    assert measure("accuracy", pairs, LABELS, ("cat", "dog")) == 0


def test_values_have_errors() -> None:
    pairs = paired([1.0, 4.0], [(2.0,), (1.0,)])
    assert measure("mae", pairs, (), ()) == 2.0
    assert measure("rmse", pairs, (), ()) == pytest.approx(5**0.5)
    assert measure("mae", paired([None], [(2.0,)]), (), ()) is None


@pytest.mark.parametrize("metric", ["quality", "val_accuracy", "loss", "latency_ms", ""])
def test_metrics_that_are_not_measured_are_refused(metric: str) -> None:
    with pytest.raises(SpecError, match="the check measures accuracy, mae, rmse"):
        check_metric(metric)


@pytest.fixture
def holder(tmp_path: Path, export_folder: Path) -> ModelVersion:
    return ModelRepository(tmp_path / "models").publish("tiny", export_folder)


def challenger(folder: Path, accuracy: float | None, **fields: object) -> Challenger:
    export = read_export(folder)
    examples = reference_of(folder, export)
    check = CheckResult(status="passed", message="fine", examples=len(examples), accuracy=accuracy)
    return Challenger(folder, export, examples, check, **fields)  # type: ignore[arg-type]


def answer_with(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, tuple[float, ...]]
) -> list[CheckRequest]:
    """Let the holder's process give these scores."""
    requests = []

    def run(request: CheckRequest, log: Path | None = None) -> Predictions:
        del log
        requests.append(request)
        found = {key: ExportPrediction(scores=scores) for key, scores in answers.items()}
        return Predictions(by_key=found)

    monkeypatch.setattr("timonel.models.comparison.run_check", run)
    return requests


def test_the_holder_answers_for_the_same_records(
    tmp_path: Path, export_folder: Path, holder: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = challenger(export_folder, 0.75)
    right = {each.key: (1.0, 0.0) if each.label == 0 else (0.0, 1.0) for each in better.examples}
    half = dict.fromkeys(right, (1.0, 0.0))
    requests = answer_with(monkeypatch, half)
    found = compare_with_holder(better, "champion", "accuracy", holder, tmp_path / "log")
    assert (found.is_better, found.value, found.holder, found.holder_value) == (True, 0.75, 1, 0.5)
    assert str(found) == "accuracy 0.75 against 0.5 of version 1, on 12 held-out records"
    assert requests[0].saved_model == holder.path
    assert requests[0].reference == export_folder / "reference.jsonl"
    answer_with(monkeypatch, right)
    found = compare_with_holder(better, "champion", "accuracy", holder, tmp_path / "log")
    assert (found.is_better, found.holder_value) == (False, 1.0)
    equal = challenger(export_folder, 1.0)
    assert not compare_with_holder(
        equal, "champion", "accuracy", holder, tmp_path / "log"
    ).is_better


def test_without_a_holder_the_alias_moves(tmp_path: Path, export_folder: Path) -> None:
    first = challenger(export_folder, 0.5)
    found = compare_with_holder(first, "champion", "accuracy", None, tmp_path / "log")
    assert found.is_better
    assert str(found) == "accuracy 0.5; no version was champion before"


def test_what_cannot_be_compared_is_an_error(
    tmp_path: Path, export_folder: Path, holder: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    with pytest.raises(ModelError, match="by mae: the model predicts labels: compare by accuracy"):
        compare_with_holder(challenger(export_folder, 0.5), "champion", "mae", holder, log)
    answer_with(monkeypatch, {})
    with pytest.raises(ModelError, match="no held-out record has a true label"):
        compare_with_holder(challenger(export_folder, 0.5), "champion", "accuracy", holder, log)
    one = challenger(export_folder, 0.5).examples[0]
    answer_with(monkeypatch, {one.key: one.scores})
    with pytest.raises(ModelError, match="answered 1 held-out records of 12"):
        compare_with_holder(challenger(export_folder, 0.5), "champion", "accuracy", holder, log)
