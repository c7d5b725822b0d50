"""Global options of the command line, as one frozen value."""

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
class GlobalOptions:
    """Values of the global options."""

    workspace: str | None = None
    debug: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, ctx: typer.Context) -> GlobalOptions:
        """Return the settings of the command line that ``ctx`` belongs to."""
        found = ctx.find_object(cls)
        return found if found is not None else cls()

    def remarks(self, *, stderr: bool = False) -> Console:
        """Return the console for progress and hints, which is silent with ``--quiet``."""
        from timonel.cli.render.output import console

        return console(stderr=stderr, quiet=self.quiet)

    def find(self, *, create: bool = False, offline: bool = False) -> Workspace:
        """Find the workspace; create one only if ``create`` is true.

        Args:
            create: Create the workspace if there is none.
            offline: Of a workspace in a bucket, use the local copy if there is one.
        """
        from timonel.storage import find_workspace

        return find_workspace(self.workspace, create=create, offline=offline)

    def plan(self) -> Workspace:
        """Find the workspace, or return the one that `find` would create; create nothing."""
        from timonel.storage.workspace import plan_workspace

        return plan_workspace(self.workspace)

    def shared_workspace(self, folder: Path) -> Path | None:
        """Return the parent folder's workspace that ``folder`` would use, if any."""
        from timonel.storage.workspace import ENVIRONMENT_VARIABLE, nearest_workspace

        if self.workspace or os.environ.get(ENVIRONMENT_VARIABLE):
            return None
        found = nearest_workspace(folder)
        return None if found is None or found.parent == folder.absolute() else found

    def mention_shared_workspace(self) -> None:
        """Tell the user if records went to a parent folder's workspace."""
        if (found := self.shared_workspace(Path.cwd())) is not None:
            self.remarks(stderr=True).print(
                f"using the workspace {found} of a parent folder (--workspace FOLDER uses another)",
                style="dim",
                soft_wrap=True,
            )


def hoist(argv: Sequence[str]) -> list[str]:
    """Move global options to the front of ``argv``.

    They may be anywhere before ``--``.

    Arguments after ``--`` belong to the user's script and are kept unchanged.
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
