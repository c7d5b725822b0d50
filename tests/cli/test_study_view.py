"""The view of a running study: its table, heading and lines."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from timonel.cli.render.study_view import StudyView
from timonel.tuning.objectives import Objective
from timonel.tuning.records import TrialRecord


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def view_of(clock: Clock, *, terminal: bool = True, **options: Any) -> tuple[StudyView, Console]:
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=100, height=20, color_system=None
    )
    options = {"total": 4, "parallel": 2, **options}
    return StudyView(console, Objective("accuracy"), clock=clock, **options), console


def drawn(view: StudyView, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(view.render())
    return [line.rstrip() for line in captured.get().splitlines()]


def test_running_trials_come_first_then_the_best() -> None:
    clock = Clock()
    view, console = view_of(clock)
    for trial in range(3):
        view.notify("started", trial, {"params": {"lr": 0.125 * trial}})
    assert drawn(view, console)[0] == "0 of 4 trials · 0.0s", "nothing is known of the time left"
    view.notify("progress", 2, {"step": 0, "value": 0.0})
    clock.now += 10
    view.notify("ended", 0, {"status": "succeeded", "values": [0.5]})
    view.notify("ended", 1, {"status": "succeeded", "values": [0.75]})
    lines = drawn(view, console)
    # One trial of 10 s is left, half of the two slots; the running one has had its time.
    assert lines[0] == "best accuracy 0.75 · 2 of 4 trials · 10s · about 5.0s left"
    assert lines[1].split() == ["TRIAL", "STATUS", "accuracy", "CURVE", "PARAMETERS", "TIME"]
    assert [line.split()[:2] for line in lines[2:]] == [
        ["2", "running"],
        ["1", "succeeded"],
        ["0", "succeeded"],
    ]
    assert lines[2].split()[2:] == ["0", "▄", "lr=0.25", "10s"]


def test_failed_trials_come_last_and_show_their_reason() -> None:
    view, console = view_of(Clock(), parallel=1)
    view.notify("started", 0, {"params": {"lr": 1}})
    view.notify("ended", 0, {"status": "failed", "reason": "out of memory"})
    view.notify("started", 1, {"params": {"lr": 2}})
    view.notify("ended", 1, {"status": "succeeded", "values": [-0.5]})
    lines = drawn(view, console)
    assert lines[0].startswith("best accuracy -0.5 · 2 of 4 trials")
    assert lines[2].split()[:3] == ["1", "succeeded", "-0.5"]
    assert lines[3].split()[:2] == ["0", "failed"]
    assert "out of memory  lr=1" in lines[3]


def test_a_small_screen_shows_what_fits() -> None:
    clock = Clock()
    view, console = view_of(clock, total=40)
    for trial in range(40):
        view.notify("started", trial, {"params": {"x": "y" * 200}})
        view.notify("ended", trial, {"status": "succeeded", "values": [float(trial)]})
    lines = drawn(view, console)
    assert len(lines) <= 20
    assert all(len(line) <= 100 for line in lines)
    assert lines[2].split()[0] == "39"


def test_a_study_that_goes_on_counts_its_earlier_trials() -> None:
    record = TrialRecord(0, "succeeded", {"lr": 1.0}, (0.9,), ((0, 0.8), (1, 0.9)), "r", "", 0, 30)
    infeasible = replace(record, number=2, status="infeasible", values=(0.99,))
    view, console = view_of(Clock(), earlier=[record, infeasible])
    view.notify("continued", 1, {"params": {"lr": 2.0}})
    lines = drawn(view, console)
    assert lines[0] == "best accuracy 0.9 · 2 of 4 trials · 0.0s · about 30s left"
    assert lines[3].split()[:3] == ["0", "succeeded", "0.9"]


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_are_for_pipes_and_the_table_is_for_terminals(terminal: bool) -> None:
    view, console = view_of(Clock(), terminal=terminal)
    with view.shown():
        view.notify("started", 0, {"params": {"lr": 0.5}})
        view.notify("ended", 0, {"status": "succeeded", "values": [0.75]})
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert ("trial 0 started: lr=0.5" in text) is not terminal
    assert ("trial 0 succeeded: accuracy 0.75" in text) is not terminal
    assert ("TRIAL" in text) is terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_warnings_are_lines(terminal: bool) -> None:
    view, console = view_of(Clock(), terminal=terminal)
    view.notify("started", 0, {"params": {}})
    with console.capture() as captured:
        view.notify("warning", 0, {"message": "no [bold]parser[/bold] knows --lr"})
    assert captured.get() == "warning: no [bold]parser[/bold] knows --lr (trial 0)\n"
