"""What the pages that soaks leave have in common: written at the end, and only if all passed."""

from __future__ import annotations

import abc
import time
from pathlib import Path

import pytest
from benchmarks import _measure


class SoakReport(abc.ABC):
    """Writes a page at the end of a session.

    Args:
        path: The page.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = time.time()

    @property
    @abc.abstractmethod
    def has_content(self) -> bool:
        """Whether there is something to write down."""

    @abc.abstractmethod
    def page(self) -> str:
        """Return the page."""

    @property
    def facts(self) -> str:
        """When, with which commit and on what it ran."""
        return f"{time.strftime('%Y-%m-%d')}, commit {_measure.commit()}, {_measure.machine()}"

    @property
    def minutes(self) -> str:
        """How long it took so far."""
        return f"{(time.time() - self._begun) / 60:.0f} minutes"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the page; those of the processes of pytest-xdist have only their share."""
        if hasattr(session.config, "workerinput"):
            return
        if exitstatus == pytest.ExitCode.OK and self.has_content:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(self.page())
