"""File systems of URIs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from timonel.errors import MissingExtraError, SpecError
from timonel.storage.filesystems import open_filesystem


def test_file_systems(tmp_path: Path) -> None:
    fs, path = open_filesystem("memory://bucket/x")
    assert (fs.protocol, path) == ("memory", "/bucket/x")
    fs, path = open_filesystem(str(tmp_path))
    assert path == str(tmp_path)
    with pytest.raises(SpecError, match="expected a path, s3:// or gs://, got nope://x"):
        open_filesystem("nope://x")


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
    for package in ("gcsfs", "gcsfs.core", "adlfs"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    # A test before this one may have used it.
    registry = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(registry, uri.partition(":")[0], raising=False)
    with pytest.raises(error, match=message):
        open_filesystem(uri)
