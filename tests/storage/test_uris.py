from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import InputError, SpecError
from timonel.storage import is_local, join, local_path, normalise


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
