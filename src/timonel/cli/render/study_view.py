"""Progress of a study: a live table on terminals, a line for each start and end elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from timonel.cli.render.tables import sparkline, status, table
from timonel.styles import number
from timonel.tuning.objectives import Objective
from timonel.tuning.records import TrialRecord
from timonel.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_REFRESH_PER_S = 4
_CURVE_WIDTH = 16
_OTHER_LINES = 4
"""Lines of the screen besides the trials: heading, headers, and room for the prompt."""


class StudyView:
    """Shows a study while it runs. `notify` may be called from another thread than the display's.

    Args:
        objective: The first objective.
        earlier: Trials that ended before.
        clock: The time in Unix seconds.
    """

    def __init__(
        self,
        screen: Console,
        objective: Objective,
        *,
        total: int,
        parallel: int,
        earlier: Iterable[TrialRecord] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._screen, self._objective, self._clock = screen, objective, clock
        self._total, self._parallel = total, parallel
        self._began = clock()
        self._lock = threading.Lock()
        self._trials = {trial.number: trial for trial in earlier if trial.ended_at}
        self._curves = {
            trial.number: [value for _, value in trial.curve] for trial in self._trials.values()
        }

    def notify(self, event: str, trial: int, facts: Mapping[str, Any]) -> None:
        """Note, and outside terminals print, what happened to a trial."""
        with self._lock:
            if event in {"started", "continued"}:
                self._begin(trial, facts["params"])
                self._say(f"trial {trial} {event}: {params_text(facts['params'])}")
            elif event == "progress" and trial in self._trials:
                self._curves[trial].append(facts["value"])
            elif event == "warning":
                line = Text(f"warning: {facts['message']} (trial {trial})", style="yellow")
                self._screen.print(line, soft_wrap=True)
            elif event == "ended":
                found = self._trials.get(trial) or self._begin(trial, {})
                found = self._trials[trial] = replace(
                    found,
                    status=facts["status"],
                    values=tuple(facts.get("values", ())),
                    reason=facts.get("reason", ""),
                    ended_at=self._clock(),
                )
                shown = found.reason or f"{self._objective.metric} {number(found.values[0])}"
                self._say(f"trial {trial} {found.status}: {shown}")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the table during the block, on a terminal; its last state stays."""
        if not self._screen.is_terminal or self._screen.quiet:
            yield
            return
        from rich.live import Live

        with Live(
            get_renderable=self.render,
            console=self._screen,
            refresh_per_second=_REFRESH_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def render(self) -> RenderableType:
        """Return the heading and the table: running trials first, then the best."""
        with self._lock:
            ordered = sorted(self._trials.values(), key=self._order)
            room = max(3, self._screen.height - _OTHER_LINES)
            rows = [
                (
                    str(trial.number),
                    status(trial.status),
                    self._last(trial),
                    sparkline(self._curves[trial.number], _CURVE_WIDTH),
                    # Long lines are truncated: the reason comes first.
                    f"{trial.reason}  {params_text(trial.params)}".strip(),
                    format_seconds((trial.ended_at or self._clock()) - trial.started_at),
                )
                for trial in ordered[:room]
            ]
            heading = Text(self._heading(), style="bold", no_wrap=True, overflow="ellipsis")
        headers = ("TRIAL", "STATUS", self._objective.metric, "CURVE", "PARAMETERS", "TIME")
        return Group(heading, table(headers, rows, wide=headers.index("PARAMETERS")))

    def _begin(self, trial: int, params: Mapping[str, Any]) -> TrialRecord:
        begun = TrialRecord(trial, "running", params, (), (), None, "", self._clock(), None)
        self._trials[trial], self._curves[trial] = begun, []
        return begun

    def _last(self, trial: TrialRecord) -> float | None:
        """Return a trial's result, or its last value so far."""
        curve = self._curves[trial.number]
        return trial.values[0] if trial.status == "succeeded" else curve[-1] if curve else None

    def _heading(self) -> str:
        objective = self._objective
        ended = [trial for trial in self._trials.values() if trial.ended_at is not None]
        values = [trial.values[0] for trial in ended if trial.status == "succeeded"]
        parts = [
            f"best {objective.metric} {number(min(values, key=objective.loss))}" if values else "",
            f"{len(ended)} of {self._total} trials",
            format_seconds(self._clock() - self._began),
            self._left(ended),
        ]
        return " · ".join(filter(None, parts))

    def _left(self, ended: list[TrialRecord]) -> str:
        """Estimate the time left from the mean duration of the trials that ended."""
        durations = [trial.ended_at - trial.started_at for trial in ended if trial.ended_at]
        if not durations or len(ended) >= self._total:
            return ""
        mean = sum(durations) / len(durations)
        running = [trial for trial in self._trials.values() if trial.ended_at is None]
        spent = sum(min(mean, self._clock() - trial.started_at) for trial in running)
        work = mean * (self._total - len(ended)) - spent
        return f"about {format_seconds(work / self._parallel)} left"

    def _order(self, trial: TrialRecord) -> tuple[int, float, int]:
        if trial.ended_at is None:
            return 0, 0.0, trial.number
        if trial.status != "succeeded":
            return 2, 0.0, trial.number
        return 1, self._objective.loss(trial.values[0]), trial.number

    def _say(self, line: str) -> None:
        if not self._screen.is_terminal:
            self._screen.print(line, soft_wrap=True)


def params_text(values: Mapping[str, Any]) -> str:
    """Return a trial's parameters in one line."""
    return " ".join(
        f"{name}={number(value) if isinstance(value, float) else value}"
        for name, value in values.items()
    )
