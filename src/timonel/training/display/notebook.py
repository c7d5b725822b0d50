"""Training progress in a Jupyter notebook, as one output that is updated.

Uses no widgets: the same lines as on a terminal, as HTML, under a display id.
"""

from __future__ import annotations

import html
import io
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.text import Text

from timonel.tracking import RunRecord
from timonel.training.display.view import TrainingView, outcome_line

if TYPE_CHECKING:
    from timonel.engines import JobStatus
    from timonel.training.handles import Run

WIDTH = 100
INTERVAL_S = 0.5
"""Minimum time between two updates."""
_KEPT = 200
"""Limits the output's size: browsers cannot open notebooks with thousands of epochs."""


class Handle(Protocol):
    """IPython's handle on an output that can be updated."""

    def update(self, bundle: Mapping[str, str], *, raw: bool) -> None:
        """Replace the output's content."""


def in_notebook() -> bool:
    """Tell whether this process is a notebook kernel, without importing IPython."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and type(found).__name__ == "ZMQInteractiveShell"


def follow(run: Run) -> None:
    """Display a run in the current cell's output until it ends."""
    display = NotebookDisplay(run.id)

    def has_ended() -> bool:
        status = run.job.status()
        display.job(status)
        return status.state.is_final

    for event in run.follow(has_ended):
        display.feed(event)
    display.end(run.record)


class NotebookDisplay:
    """Display of one job in a cell's output. Used by one thread."""

    def __init__(
        self,
        job_id: str,
        *,
        show: Callable[[Mapping[str, str]], Handle] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job_id = job_id
        self._view = TrainingView(WIDTH)
        self._clock = clock
        self._due = 0.0
        self._kept: list[Text] = []
        self._left_out = 0
        self._handle = (show or _display)(self._bundle([]))

    def feed(self, event: Mapping[str, Any]) -> None:
        """Add an event of the run."""
        self._keep(self._view.feed(event))
        self._refresh()

    def job(self, status: JobStatus) -> None:
        """Update the state of the job and its tasks."""
        self._view.job(status)
        self._refresh()

    def end(self, record: RunRecord) -> None:
        """Show the final outcome and remove live lines."""
        self._keep(self._view.end())
        line = outcome_line(
            record.id, record.status, record.duration_s, record.metrics, width=WIDTH
        )
        self._handle.update(self._bundle([line]), raw=True)

    def _keep(self, lines: list[Text]) -> None:
        self._kept += lines
        over = len(self._kept) - _KEPT
        if over > 0:
            del self._kept[:over]
            self._left_out += over

    def _refresh(self) -> None:
        now = self._clock()
        if now >= self._due:
            self._due = now + INTERVAL_S
            self._handle.update(self._bundle(self._view.lines()), raw=True)

    def _bundle(self, present: list[Text]) -> dict[str, str]:
        before = [Text(f"{self._left_out} lines before", style="dim")] if self._left_out else []
        lines = [Text(f"job {self._job_id}", style="bold"), *before, *self._kept, *present]
        plain = "\n".join(line.plain for line in lines)
        return {"text/plain": plain, "text/html": _as_html(lines)}


def _as_html(lines: list[Text]) -> str:
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH * 2, force_terminal=True, force_jupyter=False
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    style = "white-space:pre-wrap;line-height:1.35;font-family:monospace"
    return console.export_html(
        inline_styles=True, code_format=f'<pre style="{html.escape(style)}">{{code}}</pre>'
    )


def _display(bundle: Mapping[str, str]) -> Handle:
    from IPython.display import display  # noqa: PLC0415 - installed where this is called

    show: Any = display  # untyped
    handle: Handle = show(bundle, raw=True, display_id=True)
    return handle
