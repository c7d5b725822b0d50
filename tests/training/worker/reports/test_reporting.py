from __future__ import annotations

import math
from pathlib import Path

import pytest

from timonel.storage import Workspace
from timonel.tracking import RunWriter, read_run, start_run
from timonel.training.worker.reports.reporting import (
    INTERVAL_S,
    FitPlan,
    Reporter,
    Summaries,
    _rate,
    eta_s,
)


def test_the_remaining_time() -> None:
    plan = FitPlan(fit=0, epochs=3, steps=10)
    assert eta_s(plan, epoch=1, step=5, rate=10.0) == 1.5
    assert eta_s(plan, epoch=1, step=5, rate=None) is None
    assert eta_s(FitPlan(fit=0, epochs=1), epoch=0, step=4, rate=2.0) is None


def test_the_rate_since_a_mark() -> None:
    assert _rate((1.0, 10), 3.0, 30) == 10.0
    assert _rate((1.0, 10), 3.0, 10) is None
    assert _rate(None, 3.0, 30) is None


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run(workspace: Workspace) -> RunWriter:
    return start_run(workspace, "train", run_id="train-1")


def test_progress_is_told_twice_a_second_at_most(
    run: RunWriter, workspace: Workspace, tmp_path: Path
) -> None:
    clock = Clock()
    plan = FitPlan(fit=0, epochs=2, steps=100, batch_size=8)
    reporter = Reporter(run, Summaries(tmp_path / "tensorboard"), plan, clock)
    reporter.epoch_begins(0)
    for step in range(1, 101):
        reporter.batch(step, {"loss": 1.0 / step})
        clock.now += INTERVAL_S / 10
    events = read_run(workspace, "train-1").events()
    assert len(events) == 10
    assert events[0]["step"] == 1
    assert "examples_per_s" not in events[0]  # the first step was compiled
    assert events[-1]["examples_per_s"] == pytest.approx(8 / (INTERVAL_S / 10))
    assert events[-1]["epoch"] == 1
    assert events[-1]["eta_s"] == pytest.approx((200 - events[-1]["step"]) * INTERVAL_S / 10)


def test_the_end_of_an_epoch(run: RunWriter, workspace: Workspace, tmp_path: Path) -> None:
    plan = FitPlan(fit=1, epochs=5, first_epoch=2, batch_size=4, steps_before=20, epochs_before=3)
    reporter = Reporter(run, Summaries(tmp_path / "tensorboard"), plan, Clock())
    reporter.expect_steps(10)
    reporter.epoch_begins(2)
    logs = {"loss": math.nan, "val_loss": 0.5, "by_class": [1.0, 2.0]}
    reporter.epoch_ends(2, logs, steps=10, took_s=2.0)
    record = read_run(workspace, "train-1")
    assert math.isnan(record.metrics["loss"])
    assert record.metrics["val_loss"] == 0.5
    assert record.metrics["step_ms"] == 200.0
    assert record.metrics["examples_per_s"] == 20.0
    assert "by_class" not in record.metrics
    point = record.series["val_loss"][0]
    assert (point.epoch, point.step) == (5, 30)
    scalars = scalars_in(tmp_path / "tensorboard")
    assert scalars["validation", "epoch_loss"] == [(5, 0.5)]
    assert scalars["train", "epoch_step_ms"] == [(5, 200.0)]
    assert math.isnan(scalars["train", "epoch_loss"][0][1])


def test_the_rate_of_an_epoch_is_one_number_without_validation_and_compiling(
    run: RunWriter, workspace: Workspace, tmp_path: Path
) -> None:
    clock = Clock()
    plan = FitPlan(fit=0, epochs=2, steps=10, batch_size=8)
    reporter = Reporter(run, Summaries(tmp_path / "tensorboard"), plan, clock)
    for epoch in range(2):
        begun = clock.now
        reporter.epoch_begins(epoch)
        clock.now += 5.0 if epoch == 0 else 0.0  # compiles
        for step in range(1, 11):
            clock.now += 0.1
            reporter.batch(step, {"loss": 1.0})
        took_s = clock.now - begun
        clock.now += 30.0  # validates
        reporter.epoch_ends(epoch, {"loss": 1.0}, steps=10, took_s=took_s)
    events = read_run(workspace, "train-1").events()
    rates = [e.get("examples_per_s") for e in events if e["type"] == "progress"]
    epochs = [e["metrics"]["examples_per_s"] for e in events if e["type"] == "metrics"]
    assert rates[0] is None
    assert rates[1:] == pytest.approx([80.0] * (len(rates) - 1))
    assert epochs == pytest.approx([80.0, 80.0])


def test_what_tensorboard_shows(run: RunWriter, workspace: Workspace, tmp_path: Path) -> None:
    clock = Clock()
    plan = FitPlan(fit=0, epochs=1, steps=100, batch_size=8, steps_before=1000)
    summaries = Summaries(tmp_path)
    reporter = Reporter(run, summaries, plan, clock, learning_rate=lambda: 0.01)
    reporter.epoch_begins(0)
    for step in range(1, 101):
        reporter.batch(step, {"loss": 1.0 / step, "accuracy": 0.5, "bad": math.nan})
        clock.now += INTERVAL_S / 40
    reporter.epoch_ends(0, {"loss": 0.25, "val_loss": 0.5}, steps=100, took_s=1.25)
    summaries.evaluation({"loss": 0.75}, 1040)
    found = scalars_in(tmp_path)
    assert found["train", "batch_loss"] == [
        (1001, 1.0), (1041, pytest.approx(1 / 41)), (1081, pytest.approx(1 / 81)), (1100, 0.25),
    ]  # fmt: skip
    assert found["train", "batch_examples_per_s"][1:] == [
        (1081, 640.0), (1100, pytest.approx(633.6)),
    ]  # fmt: skip
    assert dict(found["train", "batch_learning_rate"]) == {
        step: pytest.approx(0.01) for step in (1001, 1041, 1081, 1100)
    }
    assert found["train", "epoch_learning_rate"] == [(0, pytest.approx(0.01))]
    assert found["validation", "epoch_loss"] == [(0, 0.5)]
    assert found["evaluator", "evaluation_loss_vs_iterations"] == [(1040, 0.75)]
    assert ("train", "batch_bad") not in found
    progress = [e for e in read_run(workspace, "train-1").events() if e["type"] == "progress"]
    assert progress[0]["loss"] == 1.0
    assert progress[0]["metrics"] == {"accuracy": 0.5}


def scalars_in(folder: Path) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return the steps and values in event files, as TensorBoard's own reader finds them."""
    import tensorflow as tf

    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for path in folder.glob("*/events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name:
                    assert value.metadata.plugin_data.plugin_name == "scalars"
                points = found.setdefault((path.parent.name, value.tag), [])
                points.append((event.step, tf.make_ndarray(value.tensor).item()))
    return found
