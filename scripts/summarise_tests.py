"""Print one summary of several runs of pytest.

Usage: summarise_tests.py REPORT.xml ...

Reports are those of --junitxml; a missing or incomplete one counts as a failed test. Property tests
are in both parts of make test-all.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET


def counts_of(report: str) -> Counter[str]:
    """Count the tests of a JUnit report by outcome."""
    counts: Counter[str] = Counter()
    for suite in ET.fromstring(report).iter("testsuite"):  # noqa: S314 - our own file
        numbers = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors")}
        skipped = int(suite.get("skipped", 0))
        failed = numbers["failures"] + numbers["errors"]
        counts += Counter(
            passed=max(0, numbers["tests"] - failed - skipped), failed=failed, skipped=skipped
        )
    return counts


def summary(counts: Counter[str]) -> str:
    """Return the line that tools read."""
    return ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped"))


def main(paths: Iterable[str]) -> None:
    """Print a line for each report and one for all."""
    total: Counter[str] = Counter()
    for path in map(Path, paths):
        try:
            counts = counts_of(path.read_text())
        except (OSError, ET.ParseError):
            counts = Counter(failed=1)
        print(f"{path.stem}: {summary(counts)}")
        total += counts
    print(summary(total))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit("usage: summarise_tests.py REPORT.xml ...")
    main(sys.argv[1:])
