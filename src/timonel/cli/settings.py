"""The options that every command has, as one frozen value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

    from timonel.storage import Workspace

_FLAGS = ("--debug",)
_VALUES = ("--workspace", "-w")


@dataclass(frozen=True)
class Settings:
    """What was said once for the whole command line."""

    workspace: str | None = None
    debug: bool = False

    @classmethod
    def of(cls, ctx: typer.Context) -> Settings:
        """Return the settings of the command line that ``ctx`` belongs to."""
        found = ctx.find_object(cls)
        return found if found is not None else cls()

    def find(self, *, create: bool = False) -> Workspace:
        """Find the workspace; make one only if ``create`` is true.

        Raises:
            NotFoundError: There is none and ``create`` is false.
        """
        from timonel.storage import find_workspace

        return find_workspace(self.workspace, create=create)


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
