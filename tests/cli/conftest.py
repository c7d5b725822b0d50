"""A workspace to work in, and the command line called in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from timonel.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """What a command line did."""

    exit_code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line on the standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        return lines[0]


Timonel = Callable[..., Outcome]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the present one, with no workspace above it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIMONEL_WORKSPACE", raising=False)
    monkeypatch.delenv("TIMONEL_DATA", raising=False)
    return tmp_path


@pytest.fixture
def timonel(here: Path, capsys: pytest.CaptureFixture[str]) -> Timonel:
    """Run one command line in this process."""

    def call(*argv: object) -> Outcome:
        capsys.readouterr()
        code = run([str(word) for word in argv])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
