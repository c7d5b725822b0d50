"""What training looks like, from recorded events."""

from __future__ import annotations

from typing import Any

from tests.cli.test_render import plain
from timonel.cli.render.training import TrainingView, outcome_line, roles_line
from timonel.engines import JobStatus, TaskStatus


def progress(t: float, epoch: int, step: int, **more: Any) -> dict[str, Any]:
    return {
        "t": t, "type": "progress", "fit": 1, "epoch": epoch, "epochs": 15, "step": step,
        "steps": 12, "loss": 0.5, **more,
    }  # fmt: skip


def metrics(t: float, epoch: int, **values: float) -> dict[str, Any]:
    return {"t": t, "type": "metrics", "epoch": epoch, "step": epoch * 12, "metrics": values}


def test_a_finished_epoch_is_a_line_with_its_time_and_rate() -> None:
    view = TrainingView(width=120)
    assert view.feed(progress(10.0, 1, 1)) == []
    assert view.feed(metrics(12.0, 0, loss=0.123456, accuracy=0.9, examples_per_s=1234.5)) == []
    (line,) = view.feed(progress(12.0, 1, 12))
    assert line.plain == "epoch  1/15  loss 0.1235  accuracy 0.9  2.0s  1,234 examples/s"
    view.feed(metrics(13.5, 1, loss=0.1))
    (line,) = view.end()
    assert line.plain.startswith("epoch  1/15")  # no later progress: the last one known


def test_a_narrow_terminal_gets_the_metrics_without_the_rest() -> None:
    view = TrainingView(width=40)
    view.feed(progress(0.0, 1, 1))
    view.feed(metrics(1.0, 0, loss=0.5, accuracy=0.75, examples_per_s=10.0))
    (line,) = view.feed(progress(1.0, 1, 12))
    assert line.plain == "epoch  1/15  loss 0.5  accuracy 0.75"


def test_a_second_fit_counts_its_own_epochs() -> None:
    view = TrainingView()
    view.feed(progress(0.0, 15, 12))
    second = {**progress(5.0, 1, 1), "fit": 2, "epochs": 3}
    view.feed(second)
    view.feed(metrics(6.0, 15, loss=1.0))
    (line,) = view.feed({**second, "t": 6.0, "step": 12})
    assert line.plain == "epoch 1/3  loss 1  1.0s"


def test_metrics_without_an_epoch_are_no_line() -> None:
    view = TrainingView()
    view.feed({"t": 0.0, "type": "metrics", "metrics": {"x": 1.0}})
    assert view.end() == []


def test_a_warning_is_told() -> None:
    event = {"t": 0.0, "type": "log", "level": "warning", "message": "nothing was fitted"}
    assert [line.plain for line in TrainingView().feed(event)] == ["warning: nothing was fitted"]


def test_a_restart_is_told_with_its_reason() -> None:
    view = TrainingView()
    (line,) = view.feed({"t": 0.0, "type": "restart", "generation": 2, "message": "lost worker-0"})
    assert line.plain == "restarted as generation 2: lost worker-0"


def test_the_present_moment_fits_into_80_columns() -> None:
    view = TrainingView()
    view.feed(progress(0.0, 4, 7, examples_per_s=3204.0, eta_s=12.0))
    view.job(job())
    lines = plain(view.live())
    assert all(len(line) <= 80 for line in lines)
    assert "epoch 4/15" in lines[0]
    assert "step 7/12" in lines[0]
    assert "loss 0.5" in lines[0]
    assert "3,204 examples/s" in lines[0]
    assert "12s left" in lines[0]
    assert "chief-0 running" in lines[1]
    assert "worker-0 starting" in lines[1]


def job() -> JobStatus:
    return JobStatus(
        job_id="train-1",
        restarts=1,
        tasks=(
            TaskStatus(role="chief", index=0, state="running"),
            TaskStatus(role="worker", index=0, state="starting"),
        ),
    )


def test_roles_and_restarts() -> None:
    assert roles_line(job()).plain == "chief-0 running  worker-0 starting  restarts 1"


def test_the_last_line_names_what_is_known_best() -> None:
    found = {"loss": 1.0, "accuracy": 0.5, "val_loss": 2.0, "val_accuracy": 0.25}
    line = outcome_line("train-1", "succeeded", 12.0, found).plain
    assert line == "train-1 succeeded in 12s  val_accuracy 0.25  val_loss 2"
    assert outcome_line("t", "failed", 1.0, {}).plain == "t failed in 1.0s"
    narrow = outcome_line("train-1", "succeeded", 12.0, found, width=48).plain
    assert narrow == "train-1 succeeded in 12s  val_accuracy 0.25"


def test_before_the_first_step_the_tasks_are_shown() -> None:
    view = TrainingView()
    view.job(job())
    (line,) = plain(view.live())
    assert "chief-0 running" in line
