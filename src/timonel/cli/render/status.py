"""Steps of unknown length: a spinner, or lines outside terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


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
