"""The page that ``make test-soak`` leaves: what jobs were disturbed by, and each test's outcome.

Written only if all passed: ``TIMONEL_SOAK_REPORT`` names the page. Registered by the conftest.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.soak_report import SoakReport
from tests.training.disturbed import SEED, TOLD, table

INTRO = """All jobs that were disturbed ended as one that nobody disturbed: with its History and
weights, to the last bit where updates have a fixed order, and with every row counted once where
parameter servers are."""
HEAD_OF_TABLE = """Seconds count from the signal and include the delay before a restart; where no
epoch was left to train they are those to the end of the job."""


class SoakPage(SoakReport):
    """What came of jobs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._passed: Counter[str] = Counter()
        self._took_s: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test; those of the server have a page of their own."""
        if report.nodeid.startswith("tests/serving/"):
            return
        name = _named(report.nodeid)
        self._took_s[name] += report.duration
        self._passed[name] += report.when == "call" and report.passed

    @property
    def has_content(self) -> bool:
        """Whether a test has run that goes onto this page."""
        return bool(self._passed)

    def page(self) -> str:
        """Return the page."""
        lines = ["# Soak", "", f"{self.facts}, seed {SEED}, {self.minutes}.", "", INTRO]
        lines += ["", "| test | passed | s |", "| --- | ---: | ---: |"]
        lines += [
            f"| {name} | {self._passed[name]} | {self._took_s[name]:.0f} |"
            for name in sorted(self._passed)
        ]
        if TOLD:
            lines += ["", "## Signals", "", HEAD_OF_TABLE, "", *table(TOLD)]
        return "\n".join(lines) + "\n"


def _named(nodeid: str) -> str:
    """Return the test of a node's id in words, whatever it was called with."""
    file, _, test = nodeid.partition("::")
    area = Path(file).stem.removeprefix("test_").replace("_", " ")
    return f"{area}: {test.partition('[')[0].rpartition('test_')[2].replace('_', ' ')}"
