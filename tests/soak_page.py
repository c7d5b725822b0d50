"""The page that ``make test-soak`` leaves: what jobs were disturbed by, and each test's outcome.

Written only if all passed: ``TIMONEL_SOAK_REPORT`` names the page. Registered by the conftest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.soak_report import SoakReport
from tests.training.disturbed import HEAD, SEED, TOLD, lines

INTRO = """All jobs that were disturbed ended as one that nobody disturbed: with its History and
weights, to the last bit where updates have a fixed order, and with every row counted once where
parameter servers are."""
_TOLD = "disturbed by"
HEAD_OF_TABLE = """Seconds count from the signal and include the delay before a restart; where no
epoch was left to train they are those to the end of the job."""


class SoakPage(SoakReport):
    """What came of jobs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._passed: Counter[str] = Counter()
        self._took_s: Counter[str] = Counter()
        self._told: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send what a test's jobs were disturbed by along with its report, to whoever writes."""
        report = yield
        report.user_properties += [(_TOLD, line) for line in lines(TOLD)]
        TOLD.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test; those of the server have a page of their own."""
        if report.nodeid.startswith("tests/serving/"):
            return
        name = _named(report.nodeid)
        self._took_s[name] += report.duration
        self._passed[name] += report.when == "call" and report.passed
        self._told += [str(line) for about, line in report.user_properties if about == _TOLD]

    @property
    def has_content(self) -> bool:
        """Whether a test has run that goes onto this page."""
        return bool(self._passed)

    def page(self) -> str:
        """Return the page."""
        page = ["# Soak", "", f"{self.facts}, seed {SEED}, {self.minutes}.", "", INTRO]
        page += ["", "| test | passed | s |", "| --- | ---: | ---: |"]
        page += [
            f"| {name} | {self._passed[name]} | {self._took_s[name]:.0f} |"
            for name in sorted(self._passed)
        ]
        if self._told:
            page += ["", "## Signals", "", HEAD_OF_TABLE, "", *HEAD, *self._told]
        return "\n".join(page) + "\n"


def _named(nodeid: str) -> str:
    """Return the test of a node's id in words, whatever it was called with."""
    file, _, test = nodeid.partition("::")
    area = Path(file).stem.removeprefix("test_").replace("_", " ")
    return f"{area}: {test.partition('[')[0].rpartition('test_')[2].replace('_', ' ')}"
