from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timonel.errors import CorruptError, FormatError, InputError, NotFoundError
from timonel.storage import (
    FORMATS,
    document,
    find_workspace,
    read_document,
    write_document,
    write_json,
)
from timonel.storage.documents import (
    STEPS,
    check_format,
    migrate_workspace,
    parse_document,
    upgrade,
)


def test_a_document_comes_back_with_kind_and_format(tmp_path: Path) -> None:
    write_document(tmp_path / "d", "run", {"id": "x"})
    value = read_document(tmp_path / "d", "run")
    assert value == {"kind": "run", "format": FORMATS["run"], "id": "x"}
    # What was read can be written again, in the present format.
    assert document("run", value | {"format": 0}) == value


def test_a_lone_surrogate_comes_back(tmp_path: Path) -> None:
    write_document(tmp_path / "d", "run", {"id": "x\udcff"})
    assert read_document(tmp_path / "d", "run")["id"] == "x\udcff"


def test_a_body_cannot_hide_the_documents_kind() -> None:
    with pytest.raises(ValueError, match="expected the kind"):
        document("run", {"kind": "train"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b'{"kind": "run", "for', "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[1]", "it is not a JSON object"),
        (b"{}", "its kind is None"),
        (b'{"kind": "job", "format": 1}', "is not a run document: its kind is job"),
        (b'{"kind": "run"}', "no valid format number"),
        (b'{"kind": "run", "format": true}', "no valid format number"),
        (b'{"kind": "run", "format": "1"}', "no valid format number"),
        (b'{"kind": "run", "format": 0}', "no valid format number"),
    ],
)
def test_what_is_no_document_is_corrupt(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(CorruptError, match=message):
        read_document(tmp_path / "d", "run")


def test_a_document_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none", tmp_path / "file" / "none"):
        with pytest.raises(NotFoundError, match="no run document at"):
            read_document(path, "run")
    with pytest.raises(InputError, match="Is a directory"):
        read_document(tmp_path, "run")


def test_the_format_before_is_read_older_and_newer_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timonel.storage.documents.FORMATS", {"run": 3})
    check_format("run", 3, "here")
    check_format("run", 2, "here")
    with pytest.raises(
        FormatError, match=r"here has run format 1, .* reads 2 or newer: run 'timonel migr"
    ):
        check_format("run", 1, "here")
    with pytest.raises(
        FormatError, match=r"here has .* format 4, .* reads 3 or older: .* upgrade timonel"
    ):
        check_format("run", 4, "here")


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
    return root


def test_every_document_is_lifted_through_all_steps_the_workspace_last(root: Path) -> None:
    assert migrate(root) == ["runs/a/run.json run 1-3", "FORMAT workspace 1-2"]
    assert json.loads((root / "runs" / "a" / "run.json").read_text()) == {
        "name": "X",
        "kind": "run",
        "format": 3,
    }
    assert json.loads((root / "FORMAT").read_text())["colour"] == "red"
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
    with pytest.raises(CorruptError, match="no workspace document"):
        migrate_workspace(tmp_path)


def test_the_present_formats_have_all_their_steps() -> None:
    assert {(kind, number) for kind in FORMATS for number in range(1, FORMATS[kind])} == set(STEPS)


def test_a_workspace_of_today_needs_nothing(tmp_path: Path) -> None:
    root = find_workspace(tmp_path / "w").root
    write_document(root / "runs" / "a" / "run.json", "run", {"id": "a"})
    assert migrate_workspace(root) == []
    assert upgrade(read_document(root / "FORMAT", "workspace"), "here")["format"] == 1


def test_a_document_that_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(CorruptError, match=r"deep\.json is not valid JSON: maximum recursion"):
        parse_document('{"kind": "dataset", "x": ' + "[" * 200_000, "dataset", "deep.json")
