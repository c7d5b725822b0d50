"""What training looks like, from recorded events."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.test_render import plain
from timonel.engines import FailureCause, JobState, JobStatus, TaskStatus
from timonel.tracking.pace import Paces
from timonel.training.display import (
    TrainingView,
    outcome_line,
    progress_lines,
    role_lines,
    roles_line,
    waiting_line,
)


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
    view.feed(metrics(1.0, 0, loss=0.5, accuracy=0.75, examples_per_s=10.0, learning_rate=0.01))
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


def test_the_present_moment_has_the_epoch_the_roles_and_who_holds_up_the_others() -> None:
    view = TrainingView()
    view.feed(progress(0.0, 4, 7, examples_per_s=3204.0, eta_s=12.0, metrics={"accuracy": 0.75}))
    view.job(job())
    for second in range(0, 10, 2):
        view.feed(pace(second, "chief-0", 38.2, wait_ms=23.0))
        view.feed(pace(second, "worker-0", 61.0, wait_ms=0.4))
    assert plain(view.live()) == [
        "epoch 4/15  ━━━━━━━━━━━━━━━━━━━  step 7/12  loss 0.5  3,204 examples/s  12s left",
        "chief   running  1 restart  38 ms a step  23 ms waiting",
        "worker  starting            61 ms a step  0.4 ms waiting",
        "slowest: worker-0 computes 61 ms a step, the others 38 ms",
    ]


def pace(t: float, task: str, step_ms: float, **more: Any) -> dict[str, Any]:
    rate = {"examples_per_s": 801.0}
    return {"t": t, "type": "pace", "task": task, "step_ms": step_ms, **rate, **more}


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120, 200])
def test_the_present_moment_fits_into_any_width(width: int) -> None:
    view = TrainingView(width)
    many = {f"metric_{number}": 0.5 for number in range(4)}
    view.feed(progress(0.0, 4, 7, examples_per_s=3204.0, eta_s=7200.0, metrics=many))
    view.job(
        JobStatus(job_id="j", tasks=tuple(TaskStatus(role="worker", index=i) for i in range(40)))
    )
    for second in range(0, 10, 2):
        for index in range(40):
            view.feed(pace(second, f"worker-{index}", 38.0 + 50 * (index == 7)))
    lines = plain(view.live(), width)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("epoch 4/15  ")
    assert ("left" in lines[0]) is (width >= 60)
    assert ("metric_3" in lines[0]) is (width >= 200)


def test_in_a_pipe_a_long_epoch_says_something_now_and_then() -> None:
    view = TrainingView(200, every_s=30.0)
    shown = [line.plain for t in range(0, 100, 2) for line in view.feed(progress(float(t), 1, t))]
    assert shown == [f"epoch 1/15  step {t}/12  loss 0.5" for t in (30, 60, 90)]


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
    assert roles_line(job()).plain == "chief running  worker starting  1 restart"


def tasks(role: str, *states: str, attempts: tuple[int, ...] = ()) -> tuple[TaskStatus, ...]:
    more = dict(enumerate(attempts))
    return tuple(
        TaskStatus(role=role, index=index, state=state, attempt=more.get(index, 1))
        for index, state in enumerate(states)
    )


def test_many_tasks_are_folded_and_those_that_differ_are_named() -> None:
    found = JobStatus(
        job_id="train-1",
        tasks=(
            *tasks("chief", "running", attempts=(2,)),
            *tasks("worker", *["running"] * 7, "restarting", attempts=(1, 1, 3)),
            *tasks("ps", "running", "running", "running", "starting", "failed", "starting"),
            *tasks("evaluator", "running"),
        ),
    )
    paces = Paces()
    for index in range(8):
        paces.feed(pace(1.0, f"worker-{index}", 38.0 + index))
    speed = "801 examples/s each  38 to 45 ms a step"
    assert [line.plain.rstrip() for line in role_lines(found, paces)] == [
        "chief      running (attempt 2)",
        f"worker x8  running, worker-2 running (attempt 3), worker-7 restarting  {speed}",
        "ps x6      running, 2 starting, 1 failed",
        "evaluator  running",
    ]
    assert roles_line(found).plain == (
        "chief running (attempt 2)  "
        "worker x8 running, worker-2 running (attempt 3), worker-7 restarting  "
        "ps x6 running, 2 starting, 1 failed  evaluator running"
    )


def test_a_role_has_not_succeeded_while_one_of_its_tasks_runs() -> None:
    found = JobStatus(job_id="train-1", tasks=tasks("worker", "succeeded", "running"))
    assert roles_line(found).plain == "worker x2 running, worker-0 succeeded"


def test_a_job_is_shown_as_it_trains_now_and_not_once_it_has_ended() -> None:
    events = [progress(0.0, 4, 7), pace(1.0, "chief-0", 38.0)]
    running = job().model_copy(update={"state": JobState.RUNNING})
    shown = [line.plain for line in progress_lines(running, events)]
    assert shown[0].startswith("epoch 4/15")
    assert shown[1].startswith("chief   running  1 restart  801 examples/s")
    assert progress_lines(running.model_copy(update={"state": JobState.FAILED}), events) == []


def test_a_profile_says_how_it_is_opened() -> None:
    event = {
        "t": 0.0,
        "type": "profile",
        "first_step": 10,
        "last_step": 20,
        "logdir": "/j/tensorboard",
    }
    (line,) = TrainingView().feed(event)
    assert line.plain == "profiled steps 10 to 20: tensorboard --logdir /j/tensorboard"


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
    assert "chief running" in line


def test_a_job_that_does_not_start_shows_the_reason() -> None:
    message = "the coordinator exits again and again with code 1: " + "long " * 20
    view = TrainingView(width=80)
    pending = job().model_copy(update={"restarts": 0, "message": message})
    for state in (JobState.PENDING, JobState.STARTING):
        view.job(pending.model_copy(update={"state": state}))
        roles, *reason = plain(view.live(), 80)
        assert "chief running" in roles
        assert " ".join(" ".join(reason).split()) == message.strip()


def test_a_job_that_runs_or_restarts_shows_no_reason_for_waiting() -> None:
    starting = job().model_copy(update={"state": JobState.STARTING, "message": "lost worker-0"})
    assert waiting_line(starting) is None  # it has restarted
    running = {"state": JobState.RUNNING, "restarts": 0, "message": "of earlier"}
    assert waiting_line(job().model_copy(update=running)) is None
    failing = {**running, "state": JobState.PENDING, "cause": FailureCause.ENGINE}
    assert waiting_line(job().model_copy(update=failing)) is None  # the error says it
