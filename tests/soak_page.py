"""The page that ``make test-soak`` leaves: what jobs were disturbed by, and each test's outcome.

Written only if all passed: ``TIMONEL_SOAK_REPORT`` names the page. Registered by the conftest.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from benchmarks import _measure

from tests.training.disturbed import SEED, TOLD, table

INTRO = """All jobs that were disturbed ended as one that nobody disturbed: with its History and
weights, to the last bit where updates have a fixed order, and with every row counted once where
parameter servers are."""
HEAD_OF_TABLE = """Seconds count from the signal and include the delay before a restart; where no
epoch was left to train they are those to the end of the job."""


class SoakPage:
    """Writes the page at the end of a session.

    Args:
        path: The page.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = time.time()
        self._passed: Counter[str] = Counter()
        self._took_s: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a test; those of the server have a page of their own."""
        if report.nodeid.startswith("tests/serving/"):
            return
        name = _named(report.nodeid)
        self._took_s[name] += report.duration
        self._passed[name] += report.when == "call" and report.passed

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the page."""
        if exitstatus == pytest.ExitCode.OK and self._passed:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(self.page())

    def page(self) -> str:
        """Return the page."""
        figures = f"{time.strftime('%Y-%m-%d')}, commit {_measure.commit()}, {_measure.machine()}"
        minutes = (time.time() - self._begun) / 60
        lines = ["# Soak", "", f"{figures}, seed {SEED}, {minutes:.0f} minutes.", "", INTRO]
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
