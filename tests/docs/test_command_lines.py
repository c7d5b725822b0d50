"""Each command line of README and the docs is one that the program takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.command_lines import command_lines, mentioned_commands, parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def problem(line: str) -> str:
    """Return why the program refuses a command line; empty if it does not."""
    try:
        parse(line)
    except Exception as error:
        return "" if type(error).__name__ == "Exit" else f"{line}: {error}"  # the end of --help
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_are_valid(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [problem(line) for line in command_lines(page)]
    # Sentences leave out arguments.
    mentioned = [problem(line) for line in mentioned_commands(page) if "COMMAND" not in line]
    found += [text for text in mentioned if "No such" in text or "has no command" in text]
    capsys.readouterr()
    assert list(filter(None, found)) == []
