"""The page that a soak of the server leaves: what it was put through, and what that cost.

Written only if all passed: ``TIMONEL_SERVING_SOAK_REPORT`` names the page. Registered by the
conftest of all tests.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from benchmarks import _measure

INTRO = """Servers with small models, asked without a pause by clients over REST and gRPC while
they are disturbed. Of the requests that are counted none failed, unless the line says which were
meant to. Memory is the front's resident set, descriptors those of all processes."""
_FOLDER = "tests/serving/"
NOTED: list[tuple[str, str]] = []
"""What tests have told: what was done, and the figures."""


def note(what: str, figures: str) -> None:
    """Have a line written on the page."""
    NOTED.append((what, figures))
    print(f"{what}: {figures}")


class ServingSoakPage:
    """Writes the page at the end of a session.

    Args:
        path: The page.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = time.time()
        self._passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test."""
        of_server = report.nodeid.startswith(_FOLDER)
        self._passed += of_server and report.when == "call" and report.passed

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the page."""
        if exitstatus == pytest.ExitCode.OK and NOTED:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(self.page())

    def page(self) -> str:
        """Return the page."""
        figures = f"{time.strftime('%Y-%m-%d')}, commit {_measure.commit()}, {_measure.machine()}"
        minutes = (time.time() - self._begun) / 60
        lines = [
            "# Soak of the server",
            "",
            f"{figures}. {self._passed} tests, {minutes:.0f} minutes.",
            "",
            INTRO,
            "",
            "| what was done | what came of it |",
            "| --- | --- |",
        ]
        lines += [f"| {what} | {text} |" for what, text in NOTED]
        return "\n".join(lines) + "\n"
