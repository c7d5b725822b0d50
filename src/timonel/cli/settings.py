"""The options that every command has, as one frozen value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from timonel.storage import Workspace

_FLAGS = ("--debug", "-q", "--quiet", "-v", "--verbose")
_VALUES = ("--workspace", "-w")


@dataclass(frozen=True)
class Settings:
    """What was said once for the whole command line."""

    workspace: str | None = None
    debug: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, ctx: typer.Context) -> Settings:
        """Return the settings of the command line that ``ctx`` belongs to."""
        found = ctx.find_object(cls)
        return found if found is not None else cls()

    def remarks(self, *, stderr: bool = False) -> Console:
        """Return the console of progress and hints, which says nothing with ``--quiet``."""
        from timonel.cli.render.output import console

        return console(stderr=stderr, quiet=self.quiet)

    def find(self, *, create: bool = False) -> Workspace:
        """Find the workspace; make one only if ``create`` is true.

        Raises:
            NotFoundError: There is none and ``create`` is false.
        """
        from timonel.storage import find_workspace

        return find_workspace(self.workspace, create=create)

    def shared_workspace(self, folder: Path) -> Path | None:
        """Return the workspace of a folder above that work in ``folder`` would go to."""
        from timonel.storage.workspace import ENVIRONMENT_VARIABLE, nearest_workspace

        if self.workspace or os.environ.get(ENVIRONMENT_VARIABLE):
            return None
        found = nearest_workspace(folder)
        return None if found is None or found.parent == folder.absolute() else found

    def tell_shared(self) -> None:
        """Say that records went to a folder above the present one, after a command wrote some."""
        if (found := self.shared_workspace(Path.cwd())) is not None:
            self.remarks(stderr=True).print(
                f"workspace: {found}, of a folder above (another: --workspace FOLDER)",
                style="dim",
                soft_wrap=True,
            )


def hoist(argv: Sequence[str]) -> list[str]:
    """Move the global options to the front, so that they may stand anywhere before ``--``.

    What follows ``--`` belongs to the user's script and is not looked at.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    mine, script = list(argv[:end]), list(argv[end:])
    front: list[str] = []
    rest: list[str] = []
    while mine:
        word = mine.pop(0)
        if word in _FLAGS or word.startswith("--workspace="):
            front.append(word)
        elif word in _VALUES and mine:
            front += [word, mine.pop(0)]
        else:
            rest.append(word)
    return [*front, *rest, *script]
