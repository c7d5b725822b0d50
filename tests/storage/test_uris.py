from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import InputError, MissingExtraError, SpecError
from timonel.storage import is_local, join, local_path, normalise
from timonel.storage.uris import filesystem


def test_one_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for location, expected in {
        "data": f"{tmp_path}/data",
        "./a/../data/": f"{tmp_path}/data",
        "~/x": "/home/me/x",
        "~nobody-of-that-name/x": f"{tmp_path}/~nobody-of-that-name/x",
        "file:///a/b%20c/": "/a/b c",
        "s3://bucket/x/": "s3://bucket/x",
        Path("/x"): "/x",
    }.items():
        assert normalise(location) == expected


@pytest.mark.parametrize("bad", ["", "  ", "s3://", "memory://", "gs:///"])
def test_no_place_is_refused(bad: str) -> None:
    with pytest.raises(SpecError, match=r"has no bucket or path|is empty"):
        normalise(bad)


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(SpecError, match="NUL"):
        normalise("~\0")


@given(st.text(st.characters(codec="ascii"), min_size=1).filter(lambda text: text.strip()))
def test_spelling_once_is_enough(text: str) -> None:
    try:
        once = normalise(text)
    except SpecError:
        return
    assert normalise(once) == once


def test_local_and_remote() -> None:
    assert is_local("/x")
    assert is_local("file:///x")
    assert not is_local("s3://b/x")
    assert local_path("file:///x") == Path("/x")
    with pytest.raises(InputError, match="expected a local path, got s3://b/x"):
        local_path("s3://b/x")
    assert join("s3://b/x/", "y", "z") == "s3://b/x/y/z"
    assert join("/x", "y") == "/x/y"


def test_file_systems(tmp_path: Path) -> None:
    fs, path = filesystem("memory://bucket/x")
    assert (fs.protocol, path) == ("memory", "/bucket/x")
    fs, path = filesystem(tmp_path)
    assert path == str(tmp_path)
    with pytest.raises(SpecError, match="expected a path, s3:// or gs://, got nope://x"):
        filesystem("nope://x")


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("gs://b/x", MissingExtraError, r"pip install 'timonel\[gcs\]'"),
        ("abfs://b/x", SpecError, "adlfs"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, uri: str, error: type[Exception], message: str
) -> None:
    for package in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    # A test before this one may have used it.
    registry = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(registry, uri.partition(":")[0], raising=False)
    with pytest.raises(error, match=message):
        filesystem(uri)
