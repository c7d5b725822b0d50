"""Progress of counted work: a live bar, or lines outside terminals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.status import Status

PIPE_INTERVAL_S = 5.0
_RATE_AFTER_S = 1.0
"""Delay before showing a rate: earlier ones are guesses, such as 178 days."""


class Counter:
    """Show progress, rate and remaining time of counted work.

    Call it with the number of finished items and the total.

    Args:
        verb: What is being done, such as "converting".
        clock: Monotonic clock in seconds; tests pass their own.
    """

    def __init__(
        self,
        console: Console,
        verb: str,
        unit: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._verb = verb
        self._unit = unit
        self._clock = clock
        self._shown = verb
        self._next_line = 0.0
        self._first: tuple[float, int] | None = None
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            bar = _bar(self._console, self._unit)
            self._bar = (bar, bar.add_task(self._shown, total=None))
            bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items are finished."""
        if self._first is None:
            # Time spent before the first item, such as listing files, must not affect the rate.
            self._first = (self._clock(), done)
            self._next_line = self._clock() + PIPE_INTERVAL_S
        if self._bar is not None:
            self._update(self._verb, done, total)
        elif self._clock() >= self._next_line and done < total:
            self._next_line = self._clock() + PIPE_INTERVAL_S
            self._console.print(self._line(done, total), soft_wrap=True)

    def scanning(self, done: int, total: int) -> None:
        """Show that ``done`` items were found; then, with a total, that so many are planned."""
        verb = "planning" if total else "scanning"
        if self._bar is not None:
            self._update(verb, done, total or None)
        elif self._clock() >= self._next_line:
            if self._next_line:
                of = f" of {total:,}" if total else ""
                self._console.print(f"{verb} {done:,}{of} {self._unit}", soft_wrap=True)
            self._next_line = self._clock() + PIPE_INTERVAL_S

    def _update(self, verb: str, done: int, total: int | None) -> None:
        assert self._bar is not None
        bar, task = self._bar
        if verb != self._shown:
            self._shown = verb
            bar.reset(task, description=verb)  # forgets the rate of another step
        bar.update(task, completed=done, total=total)

    def _line(self, done: int, total: int) -> str:
        line = f"{self._verb} {done:,} of {total:,} {self._unit}"
        began, before = self._first or (self._clock(), done)
        elapsed = self._clock() - began
        if elapsed < _RATE_AFTER_S or done <= before:
            return line
        rate = (done - before) / elapsed
        return f"{line}, {rate:,.0f}/s, {format_seconds((total - done) / rate)} left"


def _bar(console: Console, unit: str) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    class RateColumn(TextColumn):
        def render(self, task: Any) -> Any:
            from rich.text import Text

            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f} {unit}/s" if speed else "", style="dim")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        RateColumn(""),
        Remaining(compact=True),
        console=console,
        transient=True,
    )


class Steps:
    """Display of the current step.

    Call it with each step's name when the step starts.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, step: str) -> None:
        """Show ``step`` as the current one."""
        if not self._console.is_terminal:
            self._console.print(step, soft_wrap=True)
        elif self._status is None:
            self._status = self._console.status(step)
            self._status.start()
        else:
            self._status.update(step)
