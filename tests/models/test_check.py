"""The check: its process that never outlives its parent's wish, and the same answers."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from types import FrameType

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import ModelError
from timonel.models import check
from timonel.models.check import compare, run_check
from timonel.models.check_process import CheckRequest, ExportPrediction, Predictions
from timonel.models.exports import ReferenceExample

LABELS = ["no", "yes"]


def executable(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def request(folder: Path) -> CheckRequest:
    return CheckRequest(
        saved_model=folder, reference=folder / "r", input_kind="image", outputs=("scores",)
    )


@pytest.mark.process
def test_a_process_that_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = executable(tmp_path / "python", "echo loading >&2; echo out of memory >&2; kill -9 $$")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(ModelError, match="ended with code -9") as raised:
        run_check(request(tmp_path), None)
    assert "code -9: out of memory" in str(raised.value)


@pytest.fixture
def others() -> list[psutil.Process]:
    """The children that this process has anyway, of other tests."""
    return psutil.Process().children()


@pytest.mark.process
def test_a_process_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[psutil.Process]
) -> None:
    python = executable(tmp_path / "python", "exec sleep 60")
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(check, "_TIMEOUT_S", 0.2)
    with pytest.raises(ModelError, match="did not answer within"):
        run_check(request(tmp_path), tmp_path / "log")
    assert set(psutil.Process().children()) <= set(others)


@pytest.mark.process
def test_ctrl_c_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[psutil.Process]
) -> None:
    python = executable(tmp_path / "python", "exec sleep 60")
    monkeypatch.setattr(sys, "executable", python)

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_check(request(tmp_path), tmp_path / "log")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(psutil.Process().children()) <= set(others)


def expected(*scores: float, key: str = "a", label: float | None = None) -> ReferenceExample:
    return ReferenceExample(key=key, scores=scores, label=label)


def answered(*scores: float, label: str | None = None, key: str = "a") -> Predictions:
    return Predictions(by_key={key: ExportPrediction(scores=scores, label=label)})


def test_equal_answers_pass_with_their_figures() -> None:
    examples = [expected(0.9, 0.1, key="a", label=0), expected(0.2, 0.8, key="b", label=0)]
    answers = {
        "a": ExportPrediction(scores=(0.90001, 0.09999), label="no"),
        "b": ExportPrediction(scores=(0.2, 0.8), label="yes"),
    }
    result = compare(examples, Predictions(by_key=answers, seconds=0.5, load_seconds=1.5), LABELS)
    assert (result.status, result.examples) == ("passed", 2)
    assert result.max_abs_diff == pytest.approx(1e-5)
    assert (result.label_agreement, result.accuracy) == (1.0, 0.5)
    assert result.confusion == ((1, 1), (0, 0))
    assert (result.seconds, result.load_seconds) == (0.5, 1.5)
    assert "predicts the same as training on 2 held-out inputs" in result.message


@pytest.mark.parametrize(
    "found",
    [
        answered(0.7, 0.3, label="no"),
        answered(0.9, 0.1, label="yes"),
        answered(0.9, 0.1, 0.0, label="no"),
        answered(math.nan, 0.1, label="no"),
        answered(0.9, 0.1, label=None),
    ],
    ids=["score", "label", "columns", "nan", "no label"],
)
def test_other_answers_fail(found: Predictions) -> None:
    result = compare([expected(0.9, 0.1)], found, LABELS)
    assert result.status == "failed"
    assert "differ from training on 1 of 1 held-out inputs (first: a)" in (result.message)


def test_either_label_is_right_of_a_tie() -> None:
    result = compare([expected(0.50001, 0.49999)], answered(0.49999, 0.50001, label="yes"), LABELS)
    assert (result.status, result.label_agreement) == ("passed", 0.0)


def test_a_regression_is_measured_in_its_unit() -> None:
    examples = [expected(10.0, key="a", label=11.0), expected(20.0, key="b", label=17.0)]
    answers = {"a": ExportPrediction(scores=(10.0,)), "b": ExportPrediction(scores=(20.001,))}
    result = compare(examples, Predictions(by_key=answers), None)
    assert (result.status, result.accuracy, result.confusion) == ("passed", None, None)
    assert result.mae == pytest.approx(2.0, abs=1e-3)
    assert result.rmse == pytest.approx(math.sqrt(5), abs=1e-3)


def test_a_large_value_may_differ_by_a_share_of_it() -> None:
    assert compare([expected(1e6)], answered(1e6 + 900), None).status == "passed"
    assert compare([expected(1e6)], answered(1e6 + 2000), None).status == "failed"


def test_what_was_not_found_is_told() -> None:
    examples = [expected(1.0, key="a"), expected(1.0, key="b")]
    found = Predictions(by_key={"b": ExportPrediction(scores=(1.0,))}, from_records=1)
    message = compare(examples, found, None).message
    assert "1 of them from the dataset's records" in message
    assert "not found: 1" in message


def test_without_any_raw_input_nothing_is_claimed() -> None:
    result = compare([expected(1.0)], Predictions(by_key={}), None)
    assert (result.status, result.examples) == ("skipped", 0)


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=2))
def test_an_answer_agrees_with_itself(scores: list[float]) -> None:
    best = LABELS[max(range(2), key=scores.__getitem__)]
    result = compare([expected(*scores)], answered(*scores, label=best), LABELS)
    assert (result.status, result.max_abs_diff, result.label_agreement) == ("passed", 0.0, 1.0)


@pytest.mark.parametrize(
    ("precision", "off", "status"),
    [
        ("float32", 0.001, "failed"),
        ("float16", 0.001, "passed"),
        ("float16", 0.01, "failed"),
        ("bfloat16", 0.01, "passed"),
        ("bfloat16", 0.05, "failed"),
        ("int8", 0.1, "passed"),
        ("int8", 0.3, "failed"),
    ],
)
def test_fewer_bits_may_be_further_off(precision: str, off: float, status: str) -> None:
    found = answered(0.1 + off, 0.9 - off, label="yes")
    assert compare([expected(0.1, 0.9)], found, LABELS, precision).status == status


@pytest.mark.parametrize(("wrong", "status"), [(2, "passed"), (3, "failed")])
def test_a_few_examples_of_simulated_integers_may_differ(wrong: int, status: str) -> None:
    examples = [expected(0.1, 0.9, key=str(number)) for number in range(40)]
    found = {
        each.key: ExportPrediction(scores=(0.6, 0.4) if int(each.key) < wrong else (0.1, 0.9),
                                   label="no" if int(each.key) < wrong else "yes")
        for each in examples
    }  # fmt: skip
    assert compare(examples, Predictions(by_key=found), LABELS, "int8").status == status


def predictions(**scores: float) -> dict[str, ExportPrediction]:
    return {key: ExportPrediction(scores=(value,)) for key, value in scores.items()}


@pytest.mark.parametrize(
    ("alone", "together", "mixed", "expected"),
    [
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, (2, 0)),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.5}, {"a": 1.0, "b": 2.0}, (2, 1)),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 2.5}, (2, 2)),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, (0, 0)),
        ({}, {"a": 1.0, "b": 2.0}, {}, (0, 0)),
    ],
)
def test_results_alone_are_compared_with_both_batches(
    alone: dict[str, float],
    together: dict[str, float],
    mixed: dict[str, float],
    expected: tuple[int, int],
) -> None:
    found = Predictions(
        by_key=predictions(**together), alone=predictions(**alone), mixed=predictions(**mixed)
    )
    examples = [ReferenceExample(key=key, scores=(value,)) for key, value in together.items()]
    result = compare(examples, found, None)
    assert (result.rows_alone, result.rows_mixed) == expected
