from __future__ import annotations

import json
from pathlib import Path

import pytest

from timonel.endpoints.gateway.files import ConfigFiles
from timonel.errors import InputError


def test_only_changed_files_are_written(tmp_path: Path) -> None:
    files = ConfigFiles(tmp_path / "gateway")
    assert files.write({"a": {"x": 1}, "b": {"x": 1}}) == ["a", "b"]
    assert files.write({"a": {"x": 1}, "b": {"x": 2}}) == ["b"]
    current = tmp_path / "gateway" / "b" / "current.json"
    assert json.loads(current.read_text()) == {"x": 2}
    assert current.stat().st_mode & 0o077 == 0


def test_obsolete_files_are_removed(tmp_path: Path) -> None:
    files = ConfigFiles(tmp_path)
    files.write_bootstrap({})
    files.write({"a": {}, "b": {}})
    ConfigFiles(tmp_path).write({"a": {}})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "bootstrap"]


def test_a_file_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    files = ConfigFiles(tmp_path)
    (tmp_path / "a").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        files.write({"a": {}})
    (tmp_path / "a").unlink()
    assert files.write({"a": {}}) == ["a"]
