"""Files that tables name, by where the table is."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from timonel.data.sources import UnusableError
from timonel.data.sources.listed import ListedFiles, WebFile
from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import InputError
from timonel.storage import web
from timonel.storage.location import Location
from timonel.storage.uris import without_credentials


def place(table: str, name: str) -> str:
    return ListedFiles(Location(table)).place(name).uri


def test_a_local_table_names_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lists").mkdir()
    for name in ("a.png", "lists/b.png"):
        (tmp_path / name).write_bytes(b"x")
    table = Location(tmp_path / "lists" / "list.csv")
    files = ListedFiles(table)
    for name in ("b.png", "../a.png", str(tmp_path / "a.png"), (tmp_path / "a.png").as_uri()):
        assert files.read(name) == b"x"
    monkeypatch.chdir(tmp_path)
    assert files.read("a.png") == b"x"  # relative to the current directory
    assert ListedFiles(MemoryTable(pa.table({}))).read("a.png") == b"x"
    os.mkfifo(tmp_path / "pipe.png")
    for name, reason in (
        ("pipe.png", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        ("none.png", "not found|No such file"),
        ("a" * 300, "name too long"),
        ("a\0b", "NUL"),
        ("ftp://h/x.png", "expected a path, s3://, gs:// or https://"),
        ("https://[x/y.png", "Invalid IPv6|not a web address|netloc"),
    ):
        with pytest.raises(UnusableError, match=f"(?i){reason}"):
            files.read(name)


@pytest.mark.parametrize(
    ("table", "name", "found"),
    [
        ("s3://b/a/list.csv", "x.png", "s3://b/a/x.png"),
        ("s3://b/a/list.csv", "../x.png", "s3://b/x.png"),
        ("s3://b/a/c/list.csv", "../../d/./x.png", "s3://b/d/x.png"),
        ("s3://b/a/list.csv", "c//x.png", "s3://b/a/c//x.png"),
        ("s3://b/a/list.csv", "gs://other/x.png", "gs://other/x.png"),
        ("https://h/a/list.csv?v=/1", "../x.png", "https://h/x.png"),
        ("https://h/list.csv", "c/x.png", "https://h/c/x.png"),
    ],
)
def test_a_table_in_a_bucket_names_files_beside_it(table: str, name: str, found: str) -> None:
    assert place(table, name) == found


@pytest.mark.parametrize("table", ["s3://b/a/list.csv", "https://h/a/list.csv"])
@pytest.mark.parametrize("name", ["/etc/x.png", "file:///etc/x.png", "file://h/x.png"])
def test_a_table_in_a_bucket_names_nothing_on_this_machine(table: str, name: str) -> None:
    with pytest.raises(UnusableError, match=r"is on this machine, but .*list\.csv is not"):
        place(table, name)


@pytest.mark.parametrize("name", ["../../x.png", "../../b2/x.png", "c/../../../x.png"])
def test_no_name_leaves_its_bucket(name: str) -> None:
    with pytest.raises(UnusableError, match=r"it is outside of s3://b"):
        place("s3://b/a/list.csv", name)


def test_the_server_of_the_table_is_trusted() -> None:
    files = ListedFiles(Location("http://u:p@127.0.0.1:81/a/list.csv"))
    for name, is_trusted in (
        ("x.png", True),
        ("http://127.0.0.1:81/y", True),
        ("http://h/y", False),
    ):
        found = files.place(name)
        assert isinstance(found, WebFile)
        assert found.is_trusted == is_trusted
    assert files.place("http://h/y").blob().size == -1  # asks no server


def test_a_server_that_only_a_row_names_does_not_end_the_conversion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> bytes:
        raise InputError("h does not answer")

    monkeypatch.setattr("timonel.data.sources.listed.download", fail)
    with pytest.raises(UnusableError, match="cannot read https://h/x: h does not answer"):
        ListedFiles(Location("/t.csv")).read("https://h/x")
    with pytest.raises(InputError):
        ListedFiles(Location("https://h/t.csv")).read("x")
    assert web.server_of("https://u:p@h:1/x") == "h:1"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://u:p@h/x.png", "https://h/x.png"),
        ("https://h/x?v=1&X-Amz-Signature=s&sig=2&w=3", "https://h/x?v=1&w=3"),
        ("https://h/x?token=1", "https://h/x"),
        ("https://h/x?", "https://h/x?"),
        ("s3://b/a@b/x", "s3://b/a@b/x"),
        ("/a@b?token=1", "/a@b?token=1"),
    ],
)
def test_credentials_are_not_shown(uri: str, shown: str) -> None:
    assert without_credentials(uri) == shown
