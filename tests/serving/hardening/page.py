"""The page that a soak of the server leaves: what it was put through, and what that cost.

Written only if all passed: ``TIMONEL_SERVING_SOAK_REPORT`` names the page. Registered by the
conftest of all tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak_report import SoakReport

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


class ServingSoakPage(SoakReport):
    """What came of servers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test."""
        of_server = report.nodeid.startswith(_FOLDER)
        self._passed += of_server and report.when == "call" and report.passed

    @property
    def has_content(self) -> bool:
        """Whether a test has told anything."""
        return bool(NOTED)

    def page(self) -> str:
        """Return the page."""
        lines = [
            "# Soak of the server",
            "",
            f"{self.facts}. {self._passed} tests, {self.minutes}.",
            "",
            INTRO,
            "",
            "| what was done | what came of it |",
            "| --- | --- |",
        ]
        lines += [f"| {what} | {text} |" for what, text in NOTED]
        return "\n".join(lines) + "\n"
