"""The summary of several runs of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from summarise_tests import counts_of, main

REPORT = """<testsuites><testsuite name="pytest" tests="10" failures="1" errors="2" skipped="3">
<testcase classname="a" name="b"/></testsuite></testsuites>"""


def test_outcomes_are_counted() -> None:
    assert counts_of(REPORT) == {"passed": 4, "failed": 3, "skipped": 3}


def test_reports_are_added_up_and_a_missing_or_incomplete_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quick.xml").write_text(REPORT)
    (tmp_path / "cut.xml").write_text(REPORT[:-20])
    main([str(tmp_path / f"{name}.xml") for name in ("quick", "rest", "cut")])
    assert capsys.readouterr().out.splitlines() == [
        "quick: 4 passed, 3 failed, 3 skipped",
        "rest: 0 passed, 1 failed, 0 skipped",
        "cut: 0 passed, 1 failed, 0 skipped",
        "4 passed, 5 failed, 3 skipped",
    ]
