from __future__ import annotations

from pathlib import Path

import pytest

from timonel.errors import CorruptError, FormatError, InputError, NotFoundError
from timonel.storage import (
    FORMATS,
    document,
    read_document,
    write_document,
)
from timonel.storage.documents import (
    check_format,
    parse_document,
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


@pytest.mark.parametrize(("found", "cure"), [(1, "start anew"), (3, "upgrade timonel")])
def test_other_formats_are_refused(monkeypatch: pytest.MonkeyPatch, found: int, cure: str) -> None:
    monkeypatch.setattr("timonel.storage.documents.FORMATS", {"run": 2})
    check_format("run", 2, "here")
    with pytest.raises(FormatError, match=f"here has run format {found}, this .* reads 2.*{cure}"):
        check_format("run", found, "here")


def test_a_document_that_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(CorruptError, match=r"deep\.json is not valid JSON: maximum recursion"):
        parse_document('{"kind": "dataset", "x": ' + "[" * 200_000, "dataset", "deep.json")
