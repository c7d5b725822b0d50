"""Learning curves, read from a run's events."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from timonel.tuning.objectives import LearningCurves


def write(path: Path, *events: dict[str, Any]) -> None:
    with path.open("a") as file:
        for event in events:
            file.write(json.dumps({"t": 1.0, **event}) + "\n")


def point(value: Any, **place: int) -> dict[str, Any]:
    return {"type": "metrics", "metrics": {"score": value, "other": 1}, **place}


def test_values_follow_their_epochs(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    curves = LearningCurves(path, ("score",))
    curves.read()
    assert curves.last() == {}
    write(path, point(0.5, epoch=0), {"type": "progress"}, point(0.7, epoch=1, step=20))
    curves.read()
    assert curves.curves["score"] == [(0, 0.5), (1, 0.7)]
    write(path, point(0.6, epoch=2))
    curves.read()
    assert curves.last() == {"score": 0.6}
    assert curves.seen == {"score", "other"}


def test_a_restarted_job_replaces_the_values_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, point(0.1, step=0), point(0.2, step=1), point(0.9, step=2), point(0.3, step=1))
    curves = LearningCurves(path, ("score",))
    curves.read()
    assert curves.curves["score"] == [(0, 0.1), (1, 0.3)]


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, point("NaN", step=0), point("Infinity", step=1), point(None, step=2))
    curves = LearningCurves(path, ("score", "absent"))
    curves.read()
    assert [math.isnan(value) for _, value in curves.curves["score"]] == [True, True]
    assert set(curves.last()) == {"score"}
