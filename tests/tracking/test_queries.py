"""Conditions and orders of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timonel.errors import SpecError
from timonel.tracking.queries import Condition, sort_runs, value_of
from timonel.tracking.records import Artifact, MetricPoint, RunHeader, RunRecord


def run(name: str, params: dict[str, Any] | None = None, **metrics: float) -> RunRecord:
    """Return a record with parameters and last values of metrics."""
    header = RunHeader(id=name, run_kind="train", name=name, created_at=1.0)
    series = {key: (MetricPoint(t=0, value=value),) for key, value in metrics.items()}
    script = Artifact(type="source", uri=f"/there/{name}.py")
    return RunRecord(
        header=header, folder=Path(name), params=params or {}, series=series, inputs=(script,)
    )


A = run("a", {"lr": "0.1", "act": "relu"}, loss=0.5, accuracy=0.9)
B = run("b", {"lr": 0.01, "act": "tanh"}, loss=0.25, accuracy=float("nan"))
C = run("c", {"act": "relu"}, loss=2.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("params.lr < 0.05", [B]),
        ("params.lr<=.1", [A, B]),
        ("params.act = relu", [A, C]),
        ("params.act != 'relu'", [B]),
        ("loss >= 0.5", [A, C]),
        ("metrics.loss == 2", [C]),
        ("accuracy > 0", [A]),
        ("name = b", [B]),
        ("script = c.py", [C]),
        ("status = running", [A, B, C]),
        ("params.nothing = 1", []),
    ],
)
def test_conditions(text: str, expected: list[RunRecord]) -> None:
    condition = Condition.parse(text)
    assert [each for each in (A, B, C) if condition.holds(each)] == expected


@pytest.mark.parametrize("text", ["", "loss", "loss <", "< 3", "loss ~ 3"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(SpecError, match="cannot parse the condition"):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("loss", "bac"),
        ("-loss", "cab"),
        ("-accuracy", "abc"),  # NaN and missing values come last
        ("accuracy", "abc"),
        ("params.lr", "bac"),  # a number and the text of one
        ("-params.act", "bac"),
        ("-name", "cba"),
    ],
)
def test_orders(key: str, expected: str) -> None:
    assert "".join(each.id for each in sort_runs([A, B, C], key)) == expected


def test_an_unknown_value_to_sort_by_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        sort_runs([A, B], "los")
    assert "did you mean 'loss'?" in str(caught.value)
    assert sort_runs([], "los") == []


def test_values() -> None:
    assert value_of(A, "params.lr") == "0.1"
    assert value_of(A, "metrics.loss") == value_of(A, "loss") == 0.5
    assert value_of(A, "script") == "a.py"
    assert value_of(A, "missing") is None
