"""The process beside this one, with a module that needs no TensorFlow."""

from pathlib import Path

import pytest

from timonel.models import child

MODULE = """
import pathlib, sys, threading
from timonel.models import child

child.end_with_parent()
print("asked")
request, answer = map(pathlib.Path, sys.argv[1:])
answer.write_text(request.read_text().upper())
if request.read_text() == "stay":
    threading.Event().wait()
print("answered", end="\\n \\n", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "echoing.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def started(folder: Path, request: str):
    (folder / "request").write_text(request)
    return child.start("echoing", folder / "request", folder / "answer", folder / "log")


def test_it_answers_and_its_output_is_kept(folder: Path):
    process = started(folder, "go")
    try:
        assert process.wait(60) == 0
    finally:
        child.end(process)
    assert (folder / "answer").read_text() == "GO"
    assert child.last_line(folder / "log") == "answered"


def test_it_ends_when_the_one_that_started_it_is_gone(folder: Path):
    process = started(folder, "stay")
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1
    finally:
        child.end(process)


def test_it_is_ended_with_the_work_it_is_at(folder: Path):
    process = started(folder, "stay")
    child.end(process)
    assert process.returncode is not None
    assert process.returncode < 0


def test_output_without_a_word_is_named(tmp_path: Path):
    (tmp_path / "log").write_text("\n \n")
    assert child.last_line(tmp_path / "log") == "it wrote nothing"
