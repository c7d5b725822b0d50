"""The line budget of packages."""

from __future__ import annotations

from pathlib import Path

import check_budget
import pytest
import trace_paths


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Two lines at the top, three in data, none in a folder without Python files."""
    for name, text in {
        "__init__.py": '"""Top."""\n\n',
        "data/__init__.py": "",
        "data/sources/images.py": "x = 1\n\ny = 2",
        "pages/style.css": "a {}\n",
    }.items():
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "package"


def check(budgets, counts):
    return check_budget.compare(budgets, counts, "lines", "Delete code")


def test_lines_by_package(package):
    assert check_budget.count_lines(package) == {"top": 2, "data": 3, "total": 5}


def test_counts_within_their_budgets(package):
    counts = check_budget.count_lines(package)
    assert check(counts, counts) == ([], [])


def test_a_count_above_its_budget_fails():
    (error,), notes = check({"data": 10}, {"data": 13})
    assert not notes
    assert error == (
        "data: 13 lines, 3 above the budget of 10. Delete code, or raise the value in budget.toml"
        " and give the reason in the commit message."
    )


def test_a_count_below_its_budget_is_a_note():
    errors, notes = check({"data": 10}, {"data": 8})
    assert (errors, notes) == (
        [],
        ["data: 8 lines, 2 below the budget. Lower the value to 8."],
    )


def test_a_measurement_of_nothing_fails():
    errors, _ = check({"data": 8}, {"data": 0})
    assert errors == ["data is 0: the measurement does not see timonel's modules."]


def test_a_package_without_an_entry_fails():
    errors, _ = check({}, {"data": 8})
    assert errors == ["data has no budget. Add data = 8 to budget.toml."]


def test_an_entry_without_a_package_fails():
    errors, _ = check({"data": 8}, {})
    assert errors == ["data has a budget but does not exist. Remove it from budget.toml."]


def test_the_report_gives_the_exit_code(capsys):
    assert check_budget.report(check({"data": 10}, {"data": 8})) == 0
    assert capsys.readouterr().out.startswith("note: data")
    assert check_budget.report(check({"data": 10}, {"data": 11})) == 1
    assert capsys.readouterr().err.startswith("error: data")


def test_budgets_name_all_packages_and_paths():
    counts = check_budget.count_lines(check_budget.PACKAGE)
    assert check_budget.read_budget("lines").keys() == counts.keys()
    assert check_budget.read_budget("paths").keys() == trace_paths._PATHS.keys()


@pytest.mark.parametrize("text", ["[lines]\ndata = '10'\n", "[lines]\ndata = true\n", "", "["])
def test_a_budget_that_is_no_number_fails(tmp_path, monkeypatch, text):
    monkeypatch.setattr(check_budget, "BUDGET", tmp_path / "budget.toml")
    (tmp_path / "budget.toml").write_text(text)
    with pytest.raises(SystemExit, match=r"^budget\.toml"):
        check_budget.read_budget("lines")
