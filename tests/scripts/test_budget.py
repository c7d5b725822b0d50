"""The line budget of packages, and how module paths are counted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "scripts")
    check_budget = importlib.import_module("check_budget")
    trace_paths = importlib.import_module("trace_paths")


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


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Module a calls b twice: directly, and through a function of another package."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "outside.py").write_text("def apply(function):\n    return function()\n")
    (tmp_path / "toy" / "b.py").write_text(
        "def outer():\n    return inner()\n\n\ndef inner():\n    return 1\n"
    )
    (tmp_path / "toy" / "a.py").write_text(
        "from outside import apply\nfrom toy import b\n\n\n"
        "def run():\n    return b.outer() + apply(b.inner)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("toy.a")
    for name in ("toy.a", "toy.b", "toy", "outside"):
        sys.modules.pop(name, None)


def test_the_tracer_records_calls_and_returns(toy, tmp_path):
    found = []
    before = sys.getprofile()
    sys.setprofile(trace_paths.tracer(tmp_path / "toy", found.append))
    try:
        assert toy.run() == 2
    finally:
        sys.setprofile(before)
    steps = [step(Path(path).stem) for path in found]
    assert [each.module for each in steps] == ["a", "b", "b", "b", "a", "b", "a"]
    assert trace_paths.usage_of(steps, pid=1) == (2, 4)


def step(module, thread="MainThread", pid=1):
    return trace_paths.Step(0, pid, thread, module)


def test_changes_are_counted_by_thread():
    steps = [step("a"), step("b", thread="other"), step("a"), step("c", thread="other")]
    assert trace_paths.usage_of(steps, pid=1) == (3, 1)


def test_other_processes_add_modules_but_no_changes():
    assert trace_paths.usage_of([step("a"), step("b", pid=2), step("c", pid=2)], pid=1) == (3, 0)


def test_periodic_threads_are_left_out():
    assert trace_paths.usage_of([step("a"), step("b", thread="trim")], pid=1) == (1, 0)


def test_steps_are_read_back(tmp_path):
    (tmp_path / "log").write_text("5\t1\tMainThread\t/a.py\n6\t2\tmodel/1\t/b.py\n")
    assert list(trace_paths.read_steps(tmp_path / "log")) == [
        (5, 1, "MainThread", "/a.py"),
        (6, 2, "model/1", "/b.py"),
    ]
