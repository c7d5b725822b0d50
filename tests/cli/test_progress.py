"""Counting progress, in a pipe and on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from timonel.cli.render.progress import Counter, Steps


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_in_a_pipe_a_line_comes_now_and_then() -> None:
    clock, file = Clock(), io.StringIO()
    with Counter(Console(file=file, width=80), "converting", "records", clock=clock) as count:
        for second in range(12):
            clock.now = second
            count(second * 10, 200)
        count(200, 200)
    assert file.getvalue().splitlines() == [
        "converting 50 of 200 records, 10/s, 15s left",
        "converting 100 of 200 records, 10/s, 10s left",
    ]


def test_scanning_is_shown_before() -> None:
    clock, file = Clock(), io.StringIO()
    with Counter(Console(file=file, width=80), "converting", "records", clock=clock) as count:
        for second in range(1, 12):
            clock.now = second
            count.scanning(second * 1000, 0)
        clock.now = 16
        count.scanning(5000, 11_000)
        for second in (17, 21, 22):
            clock.now = second
            count((second - 17) * 10, 200)
    assert file.getvalue().splitlines() == [
        "scanning 6,000 records",
        "scanning 11,000 records",
        "planning 5,000 of 11,000 records",
        "converting 50 of 200 records, 10/s, 15s left",
    ]


def test_scanning_on_a_terminal_has_no_total() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True)
    with Counter(console, "converting", "records") as count:
        count.scanning(50, 0)
        count.scanning(20, 50)
        count(50, 50)
    assert "50/50" in file.getvalue()


def test_the_time_before_the_first_record_says_nothing_of_the_rate() -> None:
    clock, file = Clock(), io.StringIO()
    with Counter(Console(file=file, width=80), "converting", "records", clock=clock) as count:
        for second, done in ((60, 1), (66, 3001), (72, 6001)):
            clock.now = second
            count(done, 3_000_000)
    assert file.getvalue().splitlines() == [
        "converting 3,001 of 3,000,000 records, 500/s, 1h 39m left",
        "converting 6,001 of 3,000,000 records, 500/s, 1h 39m left",
    ]


def test_on_a_terminal_there_is_a_bar_that_is_cleared_at_the_end() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True)
    with Counter(console, "converting", "records") as count:
        count(50, 200)
        count(200, 200)
    assert "converting" in file.getvalue()
    assert "\x1b[" in file.getvalue()


def test_steps_are_lines_in_a_pipe() -> None:
    file = io.StringIO()
    with Steps(Console(file=file)) as steps:
        steps("checking")
        steps("publishing")
    assert file.getvalue().splitlines() == ["checking", "publishing"]


def test_steps_spin_on_a_terminal() -> None:
    file = io.StringIO()
    with Steps(Console(file=file, force_terminal=True)) as steps:
        steps("checking")
        steps("publishing")
    assert "publishing" in file.getvalue()
