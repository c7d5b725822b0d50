from __future__ import annotations

from pathlib import Path

import pytest

from timonel.errors import CorruptError, FormatError, InputError, NotFoundError
from timonel.storage import FORMATS, document, read_document, write_document
from timonel.storage.documents import check_format


def test_a_document_comes_back_with_kind_and_format(tmp_path: Path) -> None:
    write_document(tmp_path / "d", "run", {"id": "x"})
    value = read_document(tmp_path / "d", "run")
    assert value == {"kind": "run", "format": FORMATS["run"], "id": "x"}
    # What was read can be written again, in the present format.
    assert document("run", value | {"format": 0}) == value


def test_a_body_cannot_hide_the_documents_kind() -> None:
    with pytest.raises(ValueError, match="expected no 'kind'"):
        document("run", {"kind": "train"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON"),
        (b'{"kind": "run", "for', "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b"[1]", "got list"),
        (b"{}", "got None"),
        (b'{"kind": "job", "format": 1}', "expected a run document in .*, got job"),
        (b'{"kind": "run"}', "expected a format number"),
        (b'{"kind": "run", "format": true}', "expected a format number"),
        (b'{"kind": "run", "format": "1"}', "expected a format number"),
        (b'{"kind": "run", "format": 0}', "expected a format number"),
    ],
)
def test_what_is_no_document_is_corrupt(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(CorruptError, match=message):
        read_document(tmp_path / "d", "run")


def test_a_document_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none", tmp_path / "file" / "none"):
        with pytest.raises(NotFoundError, match="expected a run document at"):
            read_document(path, "run")
    with pytest.raises(InputError, match="Is a directory"):
        read_document(tmp_path, "run")


def test_the_format_before_is_read_older_and_newer_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timonel.storage.documents.FORMATS", {"run": 3})
    check_format("run", 3, "here")
    check_format("run", 2, "here")
    with pytest.raises(FormatError, match="format 2 or newer in here, got 1: run 'timonel migr"):
        check_format("run", 1, "here")
    with pytest.raises(FormatError, match=r"format 3 or older in here, got 4: .* upgrade timonel"):
        check_format("run", 4, "here")
