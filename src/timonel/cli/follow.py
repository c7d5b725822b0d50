"""Follow a job's run events and task states in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from timonel.cli.render.output import console

if TYPE_CHECKING:
    from rich.console import Console

    from timonel.engines import JobStatus
    from timonel.storage import Workspace
    from timonel.training import Run
    from timonel.training.display import TrainingView

_REFRESH_PER_S = 4
_PIPE_WIDTH = 200
_PIPE_INTERVAL_S = 30.0
"""Interval of progress lines in a long epoch, outside terminals."""


def follow(run: Run, workspace: Workspace, *, out: Console | None = None) -> None:
    """Show a run until its job has ended.

    A terminal shows the current epoch and the roles live; otherwise only lines are printed.

    Args:
        run: A run whose job was submitted.
        workspace: The workspace of the run's record.
        out: The console; standard output by default.
    """
    from timonel.tracking import follow_events
    from timonel.training.display import TrainingView

    screen = out or console()
    if screen.is_terminal:
        view = TrainingView(screen.width)
    else:
        view = TrainingView(_PIPE_WIDTH, _PIPE_INTERVAL_S)
    with _live(screen, view):
        for event in follow_events(workspace, run.id, stop=_ended(run, view, screen)):
            for line in view.feed(event):
                screen.print(line, soft_wrap=True)
        for line in view.end():
            screen.print(line, soft_wrap=True)


def _ended(run: Run, view: TrainingView, screen: Console) -> Callable[[], bool]:
    """Return the callback that tells whether the job has ended.

    It is called whenever no event is new.
    """
    shown: list[str] = [""]

    def ended() -> bool:
        status = run.job.status()
        view.job(status)
        if not screen.is_terminal:
            _tell_change(status, shown, screen)
        return status.state.is_final

    return ended


def _tell_change(status: JobStatus, shown: list[str], screen: Console) -> None:
    from timonel.training.display import roles_line

    line = roles_line(status)
    if line.plain != shown[0]:
        shown[0] = line.plain
        screen.print(line, soft_wrap=True)


@contextmanager
def _live(screen: Console, view: TrainingView) -> Iterator[None]:
    if not screen.is_terminal:
        yield
        return
    from rich.live import Live

    with Live(
        get_renderable=view.live,
        console=screen,
        refresh_per_second=_REFRESH_PER_S,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield


def pairs_of(words: list[str] | None, option: str) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` words into a dict.

    Raises:
        SpecError: A word has no ``=`` or no name, or a name is repeated.
    """
    from timonel.errors import SpecError

    found: dict[str, Any] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise SpecError(
                f"expected {option} as NAME=VALUE, got {word!r}", hint=f"as in {option} lr=0.01"
            )
        if name in found:
            raise SpecError(
                f"expected {option} {name} once, got it as {found[name]!r} and as {value!r}",
                hint="leave one of them out",
            )
        found[name] = value
    return found
