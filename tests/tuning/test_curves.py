"""Values of objectives, read from a run's events and scalars."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tensorflow as tf

from timonel.tuning.curves import LearningCurves
from timonel.tuning.tensorboard import ScalarReader

RUN = "train-1"


def curves_of(path: Path, *metrics: str) -> LearningCurves:
    return LearningCurves(path, metrics, ScalarReader(path.parent / "job", RUN))


def write(path: Path, *events: dict[str, Any]) -> None:
    with path.open("a") as file:
        for event in events:
            file.write(json.dumps({"t": 1.0, **event}) + "\n")


def point(value: Any, **place: int) -> dict[str, Any]:
    return {"type": "metrics", "metrics": {"score": value, "other": 1}, **place}


def summarize(folder: Path, tag: str, values: dict[int, float]) -> None:
    suffix = f".{RUN}.v2"
    writer = tf.summary.create_file_writer(str(folder), flush_millis=0, filename_suffix=suffix)
    with writer.as_default():
        for step, value in values.items():
            tf.summary.scalar(tag, value, step=step)


def test_values_follow_their_epochs(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    curves = curves_of(path, "score")
    curves.read()
    assert curves.last() == {}
    assert curves.names() == "none"
    write(path, point(0.5, epoch=0), {"type": "progress"}, point(0.7, epoch=1, step=20))
    curves.read()
    assert curves.curves["score"] == [(0, 0.5), (1, 0.7)]
    write(path, point(0.6, epoch=2))
    curves.read()
    assert curves.last() == {"score": 0.6}
    assert curves.names() == "other, score"


def test_a_restarted_job_replaces_the_values_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, point(0.1, step=0), point(0.2, step=1), point(0.9, step=2), point(0.3, step=1))
    curves = curves_of(path, "score")
    curves.read()
    assert curves.curves["score"] == [(0, 0.1), (1, 0.3)]


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, point("NaN", step=0), point("Infinity", step=1), point(None, step=2))
    curves = curves_of(path, "score", "absent")
    curves.read()
    assert [math.isnan(value) for _, value in curves.curves["score"]] == [True, True]
    assert set(curves.last()) == {"score"}


def test_scalars_replace_metrics_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    logs = tmp_path / "logs"
    write(path, point(0.5, step=0), {"type": "summaries", "folder": str(logs)})
    summarize(logs, "score", {0: 9.0})
    summarize(logs, "auc", {0: 0.25, 1: 0.5})
    curves = curves_of(path, "auc", "score")
    curves.read()
    assert curves.curves == {"auc": [(0, 0.25), (1, 0.5)], "score": [(0, 0.5)]}
    assert curves.names() == "other, score; TensorBoard scalars: auc"
    assert curves.problem() is None


def test_a_restarted_job_continues_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, {"type": "summaries", "folder": str(tmp_path)})
    curves = curves_of(path, "auc")
    summarize(tmp_path, "auc", {0: 0.5, 1: 0.75, 2: 1.0})
    curves.read()
    summarize(tmp_path, "auc", {1: 0.25})
    curves.read()
    assert curves.curves["auc"] == [(0, 0.5), (1, 0.25)]


def test_validation_counts_if_training_has_the_same_tag(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    curves = curves_of(path, "epoch_loss")
    summarize(tmp_path / "job" / "logs" / "validation", "epoch_loss", {0: 2.0})
    summarize(tmp_path / "job" / "logs" / "train", "epoch_loss", {0: 1.0, 1: 1.0})
    curves.read(is_final=True)
    assert curves.curves["epoch_loss"] == [(0, 2.0)]


def test_a_corrupt_file_is_a_problem_if_the_metric_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    job = tmp_path / "job"
    summarize(job / "broken", "auc", {0: 0.5})
    summarize(job / "val", "loss", {0: 0.5})
    for file in (job / "broken").iterdir():
        file.write_bytes(file.read_bytes() + b"x" * 12)
    for metric, is_problem in (("auc", True), ("loss", False), ("absent", True)):
        curves = curves_of(path, metric)
        curves.read(is_final=True)
        assert (curves.problem() is not None) == is_problem
