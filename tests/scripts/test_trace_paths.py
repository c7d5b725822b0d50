"""How the modules that a path passes are counted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import trace_paths

from timonel.serving.batching.scheduled_model import ScheduledModel


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
    assert trace_paths.usage_of(steps) == (2, 4)


def step(module, thread="MainThread", pid=1):
    return trace_paths.Step(0, pid, thread, module)


def test_changes_are_counted_by_thread():
    steps = [step("a"), step("b", thread="other"), step("a"), step("c", thread="other")]
    assert trace_paths.usage_of(steps) == (3, 1)


def test_threads_of_different_processes_are_distinct():
    assert trace_paths.usage_of([step("a"), step("b", pid=2), step("c", pid=2)]) == (3, 1)


def test_periodic_threads_are_left_out():
    assert trace_paths.usage_of([step("a"), step("b", thread="trim")]) == (1, 0)


def test_steps_are_read_back(tmp_path):
    (tmp_path / "log").write_text("5\t1\tMainThread\t/a.py\n6\t2\tmodel/1\t/b.py\n")
    assert list(trace_paths.read_steps(tmp_path / "log")) == [
        (5, 1, "MainThread", "/a.py"),
        (6, 2, "model/1", "/b.py"),
    ]


def test_the_function_that_starts_a_model_has_its_name():
    assert ScheduledModel.submit.__qualname__ == trace_paths._SUBMIT
