"""Ask for confirmation before a deletion."""

from __future__ import annotations

import sys

import typer

from timonel.errors import SpecError


def is_confirmed(name: str, question: str) -> bool:
    """Ask the user to confirm a deletion that cannot be undone.

    Args:
        name: What is to be deleted.
        question: The question, without "This cannot be undone."

    Raises:
        SpecError: Standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise SpecError(
            f"deleting {name} cannot be undone, and standard input is no terminal to confirm it",
            hint="use --yes to delete it",
        )
    return typer.confirm(f"{question} This cannot be undone.")
