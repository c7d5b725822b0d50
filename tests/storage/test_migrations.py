"""Lifting documents: in steps, atomically, and only what is known."""

from __future__ import annotations

import json
from pathlib import Path

from timonel.storage import find_workspace, write_document
from timonel.storage.documents import FORMATS
from timonel.storage.migrations import migrate

LIFTS = {
    ("run", 1): lambda body: {**body, "second": True},
    ("run", 2): lambda body: {**body, "third": True},
}


def write(path: Path, kind: str, number: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": kind, "format": number, "body": "kept"}))
    return path


def test_a_workspace_of_this_release_is_left_as_it_is(tmp_path: Path) -> None:
    workspace = find_workspace(tmp_path / "w")
    write_document(workspace.runs / "r" / "run.json", "run", {})
    report = migrate(workspace.root)
    assert (report.current, report.lifted, report.refused) == (2, [], [])


def test_documents_are_lifted_step_by_step(tmp_path: Path) -> None:
    path = write(tmp_path / "runs" / "r" / "run.json", "run", 1)
    report = migrate(tmp_path, lifts=LIFTS, formats={"run": 3})
    assert report.lifted == [path]
    assert json.loads(path.read_text()) == {
        "kind": "run",
        "format": 3,
        "body": "kept",
        "second": True,
        "third": True,
    }
    assert migrate(tmp_path, lifts=LIFTS, formats={"run": 3}).current == 1


def test_what_cannot_be_lifted_is_named_and_left(tmp_path: Path) -> None:
    old = write(tmp_path / "a.json", "job", 1)
    new = write(tmp_path / "b.json", "run", 9)
    odd = write(tmp_path / "c.json", "poem", 1)
    before = [path.read_text() for path in (old, new, odd)]
    report = migrate(tmp_path, lifts=LIFTS, formats={"run": 3, "job": 2})
    assert [path for path, _ in report.refused] == [old, new, odd]
    assert [path.read_text() for path in (old, new, odd)] == before


def test_files_that_are_no_documents_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{broken")
    (tmp_path / "y.json").write_text('{"kind": 1}')
    write(tmp_path / ".tmp-1-x" / "z.json", "run", 1)
    report = migrate(tmp_path, formats=FORMATS)
    assert (report.current, report.lifted, report.refused) == (0, [], [])
