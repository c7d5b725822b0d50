"""Progress in a Jupyter notebook: one output that changes while the job goes on.

It needs no widgets: the same lines as on a terminal, as HTML, under a display id.
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

from timonel.tracking import RunRecord, follow_events
from timonel.training.display.view import TrainingView, outcome_line

if TYPE_CHECKING:
    from timonel.engines import JobStatus
    from timonel.training.handles import Run

WIDTH = 100
INTERVAL_S = 0.5
"""The least time between two changes of what is shown."""
_KEPT = 200
"""A training of thousands of epochs must not make a notebook that no browser opens."""


class Handle(Protocol):
    """What IPython gives for an output that can be changed."""

    def update(self, bundle: Mapping[str, str], *, raw: bool) -> None:
        """Show something else in its place."""


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook, without importing what it is not."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and type(found).__name__ == "ZMQInteractiveShell"


def follow(run: Run) -> None:
    """Show a run in the output of the present cell until its job has ended."""
    display = NotebookDisplay(run.id)

    def has_ended() -> bool:
        status = run.job.status()
        display.job(status)
        return status.state.is_final

    for event in follow_events(run.workspace, run.id, stop=has_ended):
        display.feed(event)
    display.end(run.record)


class NotebookDisplay:
    """Shows one job in the output of a cell. Used by one thread.

    Args:
        job_id: The job.
        show: Makes an output; a test passes its own.
        clock: Seconds that only grow.
    """

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
        """Take an event of the run."""
        self._keep(self._view.feed(event))
        self._refresh()

    def job(self, status: JobStatus) -> None:
        """Take the state of the job and its tasks."""
        self._view.job(status)
        self._refresh()

    def end(self, record: RunRecord) -> None:
        """Show how it ended, and nothing that moves."""
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
            self._handle.update(self._bundle(self._view.present()), raw=True)

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
    from IPython.display import display  # noqa: PLC0415 - there is one where this is called

    show: Any = display  # it has no types
    handle: Handle = show(bundle, raw=True, display_id=True)
    return handle
