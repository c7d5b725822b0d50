from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timonel.errors import CorruptError, FormatError
from timonel.storage import find_workspace, read_document, write_document, write_json
from timonel.storage.documents import FORMATS
from timonel.storage.migrations import STEPS, lift, migrate_workspace

FORMATS_LATER = {"workspace": 2, "run": 3, "job": 1}
STEPS_LATER = {
    ("workspace", 1): lambda body: body | {"colour": "red"},
    ("run", 1): lambda body: (
        {key: body[key] for key in body if key != "nme"} | {"name": body["nme"]}
    ),
    ("run", 2): lambda body: body | {"name": body["name"].upper()},
}


def migrate(root: Path, **options: Any) -> list[str]:
    lifted = migrate_workspace(root, **({"steps": STEPS_LATER, "formats": FORMATS_LATER} | options))
    return [
        f"{item.path.relative_to(root)} {item.kind} {item.from_format}-{item.to_format}"
        for item in lifted
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = find_workspace(tmp_path / "w").root
    write_json(root / "runs" / "a" / "run.json", {"kind": "run", "format": 1, "nme": "x"})
    write_json(root / "runs" / "b" / "run.json", {"kind": "run", "format": 3, "name": "Y"})
    write_json(root / "jobs" / "j" / "job.json", {"kind": "job", "format": 1})
    write_json(root / "jobs" / "j" / "other.json", {"kind": "unknown", "format": 1})
    (root / "jobs" / "j" / "broken.json").write_text("{")
    (root / "jobs" / "j" / "list.json").write_text("[1]")
    write_json(root / "cache" / "x" / "run.json", {"kind": "run", "format": 1, "nme": "x"})
    return root


def test_every_document_is_lifted_through_all_steps_the_workspace_last(root: Path) -> None:
    assert migrate(root) == ["runs/a/run.json run 1-3", "FORMAT workspace 1-2"]
    assert json.loads((root / "runs" / "a" / "run.json").read_text()) == {
        "name": "X",
        "kind": "run",
        "format": 3,
    }
    assert json.loads((root / "FORMAT").read_text())["colour"] == "red"
    assert json.loads((root / "cache" / "x" / "run.json").read_text())["format"] == 1
    assert migrate(root) == []


@pytest.mark.parametrize("trouble", ["newer", "no step"])
def test_what_cannot_be_lifted_leaves_all_as_it_was(root: Path, trouble: str) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*.json")}
    if trouble == "newer":
        formats, steps = {"workspace": 2, "run": 2, "job": 1}, STEPS_LATER
    else:
        formats, steps = FORMATS_LATER, {("workspace", 1): STEPS_LATER["workspace", 1]}
    with pytest.raises(FormatError, match="upgrade timonel" if trouble == "newer" else "no step"):
        migrate(root, formats=formats, steps=steps)
    assert {path: path.read_bytes() for path in root.rglob("*.json")} == before
    assert json.loads((root / "FORMAT").read_text())["format"] == 1


def test_a_folder_that_is_no_workspace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="expected a workspace document"):
        migrate_workspace(tmp_path)


def test_the_present_formats_have_all_their_steps() -> None:
    assert {(kind, number) for kind in FORMATS for number in range(1, FORMATS[kind])} == set(STEPS)


def test_a_workspace_of_today_needs_nothing(tmp_path: Path) -> None:
    root = find_workspace(tmp_path / "w").root
    write_document(root / "runs" / "a" / "run.json", "run", {"id": "a"})
    assert migrate_workspace(root) == []
    assert lift(read_document(root / "FORMAT", "workspace"), "here")["format"] == 1
